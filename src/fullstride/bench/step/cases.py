"""What `fullstride bench step` measures, and what it expects. Without torch: bad arguments need not wait for it."""

from dataclasses import dataclass, field, replace
from typing import Any

MODELS = ("mlp", "llama", "bert", "fastspeech2", "clip")  # of models.py
TEST_MODELS = ("tiny", "tiny-llama", "tiny-speech", "tiny-clip")  # there, too
OTHER_MODELS = ("gpt2", "fastspeech2 32")  # and these, for benchmarks/mechanisms.py and fastspeech2_profile.py
STOCK_DEFAULT, STOCK_BEST, STOCK_BF16 = "stock default", "stock at its best", "stock autocast bf16"
MOST_FAULTS = 1000  # page faults a step of ours; and it must not hold more memory than stock as it comes


@dataclass(frozen=True)
class Case:
    """A model, the micro-batches of a step, and the precisions of ours; precision -> peer -> at least this ratio.

    Where bf16 is slow, "auto" is fp32, and held to the targets of fp32 if there are any.
    batch: of what a model comes with several of; batch_of: what that counts.
    bf16_memory: ours must not hold more than stock PyTorch under autocast to bf16, which a process shows.
    """

    model: str
    accumulate: int = 1
    precisions: tuple[str, ...] = ("auto",)
    targets: dict[str, dict[str, float]] = field(default_factory=dict)
    batch: str = ""
    batch_of: str = "tokens"
    bf16_memory: bool = False
    no_fused: str = ""  # why stock PyTorch's optimizer has no fused form, if so
    recipe: str | None = None  # the folder that says what `model`, the name of a recipe, means (compare/folder.py)

    @property
    def title(self) -> str:
        batch = f", {self.batch} {self.batch_of}" if self.batch else ""
        return f"{self.model}{batch}, accumulation {self.accumulate}"

    def targets_of(self, wish: str, precision: str) -> dict[str, float]:
        """wish: the precision that was asked for; precision: what became of it."""
        is_fp32 = precision == "fp32" and "fp32" in self.targets
        return self.targets.get("fp32" if is_fp32 else wish, {})

    def config(self, **settings: Any) -> dict[str, Any]:
        """What side.py is started with."""
        own: dict[str, Any] = {"model": f"{self.model} {self.batch}".strip(), "accumulate": self.accumulate}
        return own | ({"recipe": self.recipe} if self.recipe else {}) | settings


def _targets(default: float, best: float) -> dict[str, dict[str, float]]:
    return {"auto": {STOCK_DEFAULT: default, STOCK_BEST: best}}


CASES = (
    Case("mlp", 1, ("auto", "fp32"), _targets(4.0, 1.8) | {"fp32": {STOCK_DEFAULT: 1.6}}),
    Case("mlp", 8, targets=_targets(3.2, 1.8)),
    Case("llama", targets=_targets(3.2, 1.5), batch="4 x 256", bf16_memory=True),
    Case("llama", targets=_targets(3.0, 1.4), batch="1 x 1024", bf16_memory=True),
    Case("bert", targets=_targets(2.8, 1.4)),
    Case("fastspeech2", targets=_targets(2.5, 1.4) | {"fp32": {STOCK_DEFAULT: 1.5}}),
    Case("clip", targets=_targets(3.0, 1.4) | {"fp32": {STOCK_DEFAULT: 1.5}}, batch="12", batch_of="pairs"),
    Case("clip", targets=_targets(3.0, 1.4) | {"fp32": {STOCK_DEFAULT: 1.5}}, batch="64", batch_of="pairs"),
)


def choose(models: list[str], accumulate: int | None, precisions: list[str]) -> list[Case]:
    """The cases of these models, or of all; with this accumulation and these precisions instead of their own."""
    for model in models:
        if model not in (*MODELS, *TEST_MODELS):
            raise ValueError(f"no model {model!r}; there are: {', '.join(MODELS)}")
    chosen = []
    for model in dict.fromkeys(models or MODELS):
        own = [case for case in CASES if case.model == model]
        wanted = [case for case in own if accumulate in (None, case.accumulate)]
        batches = {case.batch: case.batch_of for case in own}
        others = [Case(model, accumulate or 1, batch=batch, batch_of=of) for batch, of in batches.items()]
        for case in wanted or others or [Case(model, accumulate or 1, bf16_memory=model in TEST_MODELS)]:
            chosen.append(replace(case, precisions=tuple(dict.fromkeys(precisions)) or case.precisions))
    return chosen
