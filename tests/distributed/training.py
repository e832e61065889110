"""Small configs of every recipe, and trainings of them in several processes."""

from pathlib import Path
from typing import Any

from fullstride import recipes
from fullstride.distributed.world import World
from fullstride.recipes.config import Config
from fullstride.recipes.mlp import MlpConfig
from fullstride.run_folder.metrics import read
from fullstride.train.checkpoints.store import Store
from fullstride.train.trainer import Trainer

from ..recipes import speech_corpus, tiny_clip
from ..train.runs import small
from .processes import together

STEPS = 50
_OFTEN: dict[str, Any] = {
    "steps": STEPS, "threads": 1, "precision": "fp32", "logging": {"every": 1}, "checkpoints": {"every": 25},
}  # fmt: skip


def mlp(**changes: Any) -> MlpConfig:
    """Four micro-batches of 8 a step; dropout is 0.1 unless it is changed."""
    base: dict[str, Any] = {"accumulate": 4, "evaluation": {"every": 10, "batch": 4}, **_OFTEN}
    return small(**{**base, **changes})


def seven(**changes: Any) -> Config:
    """LAMB with bf16 states, Lookahead, freezing."""
    base = recipes.mlp_seven().replace(
        epochs=None, micro_batch=8, accumulate=4, model={"hidden": [16, 16, 16]}, evaluation={"every": 10},
        data={"num_samples": 50, "num_features": 12, "num_classes": 5, "num_valid": 20, "workers": 0},
        freeze={"patience": 3, "threshold": 0.9}, **_OFTEN,
    )  # fmt: skip
    return base.replace(**changes)


def llama(folder: Path, **changes: Any) -> Config:
    text = folder / "text.txt"
    text.write_text("the king went out, and the queen\nwent in.\n" * 20)
    base = recipes.llama_char().replace(
        micro_batch=4, model={"width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 64, "context": 16},
        data={"path": str(text), "workers": 0}, samples={"tokens": 4}, evaluation={"every": 25}, **_OFTEN,
    )  # fmt: skip
    return base.replace(**changes)


def fastspeech2(**changes: Any) -> Config:
    """Without dropout, whose masks are other ones where micro-batches are cut."""
    model = speech_corpus.MODEL | {"dropout": 0.0, "predictor_dropout": 0.0}
    return speech_corpus.tiny(model=model, evaluation={"every": 25, "batch": 4}).replace(**{**_OFTEN, **changes})


def clip(**changes: Any) -> Config:
    base = tiny_clip.tiny(micro_batch=8, evaluation={"every": 25, "batch": 5})
    return base.replace(**{**_OFTEN, **changes})


def fit(world: World, config: Config, run: Path) -> str:
    """In one of the processes; the folder that it wrote."""
    trainer = Trainer(config, run)
    trainer.quiet = True
    return str(trainer.fit().run)


def resume(world: World, run: Path) -> str:
    trainer = Trainer.resume(run)
    trainer.quiet = True
    return str(trainer.fit().run)


def train(num: int, config: Config, run: Path) -> Path:
    together(num, fit, config, run)
    return run


def goes_on(num: int, run: Path) -> Path:
    together(num, resume, run)
    return run


def rows(run: Path, kind: str = "train") -> dict[int, dict[str, Any]]:
    return {row["step"]: row for row in read(run) if row["kind"] == kind}


def weights(run: Path) -> dict[str, Any]:
    newest = Store(run / "checkpoints").newest()
    assert newest is not None
    return newest.tensors["model"]


def assert_alike(one: Path, other: Path, tolerance: float, of_norms: float | None = None) -> None:
    """Losses, norms and evaluations of every step, and the weights at the end; counters exactly."""
    of_norms = 10 * tolerance if of_norms is None else of_norms
    for kind, names in (("train", ("loss", "grad_norm")), ("eval", ("loss",))):
        first, second = rows(one, kind), rows(other, kind)
        assert first.keys() == second.keys()
        for step, row in first.items():
            for name in names:
                far = abs(row[name] - second[step][name]) / max(1.0, abs(row[name]))
                assert far <= (of_norms if name == "grad_norm" else tolerance), (kind, step, name, far)
            if kind == "train":
                assert (row["samples"], row["lr"], row["epoch"]) == tuple(
                    second[step][name] for name in ("samples", "lr", "epoch")
                )
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    distances = {name: float((mine[name] - theirs[name]).abs().max()) for name in mine}
    assert max(distances.values()) <= 100 * tolerance, distances  # Adam divides by small roots
