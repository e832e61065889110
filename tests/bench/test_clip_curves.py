"""Loss and scores over time of recipe clip-small, made tiny by its fields: by the processes that train it."""

import json
import signal

import pytest
from benchmarks import llama_curves

from ..recipes.tiny_clip import MODEL

TINY = [
    *(word for name, value in MODEL.items() for word in (f"--model.{name.replace('_', '-')}", str(value))),
    "--steps", "4", "--micro-batch", "5", "--data.num-train", "24", "--data.num-valid", "10", "--data.tokenizer",
    "characters", "--data.workers", "0", "--threads", "1", "--precision", "fp32", "--evaluation.batch", "5",
]  # fmt: skip
SCORES = ("loss", "recall_1", "image_recall_1", "hard_accuracy")


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    file = tmp_path_factory.mktemp("curves") / "curves.json"
    words = ["--sides", "fullstride,stock", "--every", "2", "--scores", "--json", str(file)]
    hang_up = signal.getsignal(signal.SIGHUP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(file.parent))  # which the program changes
        llama_curves.main(["clip-small", *words, *TINY])
    signal.signal(signal.SIGHUP, hang_up)
    return json.loads(file.read_text())


def test_every_point_of_every_side_has_the_scores_of_the_recipe(content):
    assert [side["side"] for side in content["sides"]] == ["fullstride", "stock"]
    for side in content["sides"]:
        assert [point["step"] for point in side["points"]] == [2, 4]
        assert all(tuple(point["scores"]) == SCORES for point in side["points"])
        assert all(0 <= point["scores"]["recall_1"] <= 1 for point in side["points"])


def test_scores_are_of_the_weights_that_the_side_has(content):
    """What it saves and the task scores gives the loss that it finds itself, over the same batches of 5."""
    for side in content["sides"]:
        first, last = side["points"]
        assert first["loss"] != last["loss"]
        assert all(point["scores"]["loss"] == pytest.approx(point["loss"], rel=1e-5) for point in side["points"])


def test_both_sides_score_alike_as_they_take_the_same_steps(content):
    ours, stock = (side["points"] for side in content["sides"])
    for one, other in zip(ours, stock, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert one["scores"]["loss"] == pytest.approx(other["scores"]["loss"], rel=1e-4)
