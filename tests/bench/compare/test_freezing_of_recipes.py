"""Stock's side freezes what ours freezes, whatever the model: tied weights, encoders side by side, a chain of parts."""

import pytest

from fullstride.bench.compare.folder import Folder
from fullstride.bench.step.cases import Case
from fullstride.bench.step.side import Training
from fullstride.recipes.config import Freeze

from ...recipes import speech_corpus, tiny_clip
from ...recipes.test_llama import VERSE
from ...recipes.test_llama import tiny as tiny_llama

FREEZE = Freeze(enabled=True, threshold=1e9, patience=2, min_active=1)


def config_of(kind, tmp_path):
    if kind == "clip":
        return tiny_clip.tiny(model={"dropout": 0.0})
    if kind == "fastspeech2":
        return speech_corpus.tiny(model={"dropout": 0.0, "predictor_dropout": 0.0})
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text(VERSE * 20, encoding="utf-8")
    return tiny_llama(tmp_path / "texts", model={"tied": kind == "tied llama"})


@pytest.mark.usefixtures("quiet", "num_threads")
@pytest.mark.parametrize("kind", ["llama", "tied llama", "clip", "fastspeech2"])
def test_both_sides_freeze_the_same_layers_and_go_on_alike(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / "data"))
    config = config_of(kind, tmp_path).replace(steps=8, freeze=FREEZE, precision="fp32", threads=1)
    (tmp_path / "recipe").mkdir()
    folder = Folder(tmp_path / "recipe", config)
    folder.provide(8)
    case = Case(kind, config.accumulate, ("fp32",), recipe=str(folder.path))
    stock = Training(case.config())
    theirs = stock.run(8)
    ours = Training(case.config(fullstride="fp32")).run(8)
    assert theirs["frozen"] == ours["frozen"]
    assert theirs["losses"] == pytest.approx(ours["losses"], rel=1e-3)
    frozen = [name for name, p in stock.model.named_parameters() if not p.requires_grad]
    assert len(frozen) > 15
    assert ("embedding.weight" in frozen) == (kind in ("llama", "fastspeech2"))  # a tied one is the last layer's, too
