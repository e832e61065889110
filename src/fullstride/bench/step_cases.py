"""What `fullstride bench step` measures, and what it expects. Without torch: bad arguments need not wait for it."""

from dataclasses import dataclass, field
from typing import Any

MODELS = ("mlp", "llama", "bert")  # of step_models.py, which has "tiny" besides, for tests
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
STOCK_DEFAULT, STOCK_BEST = "stock default", "stock at its best"
MOST_FAULTS = 1000  # page faults a step of ours; and it must not hold more memory than stock as it comes


@dataclass(frozen=True)
class Case:
    """A model, the micro-batches of a step, and the precisions of ours; precision -> peer -> at least this ratio."""

    model: str
    accumulate: int = 1
    precisions: tuple[str, ...] = ("auto",)
    targets: dict[str, dict[str, float]] = field(default_factory=dict)
    recipe: str | None = None  # the folder that says what `model`, the name of a recipe, means (compare_folder.py)

    @property
    def title(self) -> str:
        return f"{self.model}, accumulation {self.accumulate}"

    def config(self, **settings: Any) -> dict[str, Any]:
        """What step_side.py is started with."""
        own: dict[str, Any] = {"model": self.model, "accumulate": self.accumulate}
        return own | ({"recipe": self.recipe} if self.recipe else {}) | settings


def _targets(default: float, best: float) -> dict[str, dict[str, float]]:
    return {"auto": {STOCK_DEFAULT: default, STOCK_BEST: best}}


CASES = (
    Case("mlp", 1, ("auto", "fp32"), _targets(4.0, 1.8) | {"fp32": {STOCK_DEFAULT: 1.6}}),
    Case("mlp", 8, targets=_targets(3.2, 1.8)),
    Case("llama", targets=_targets(3.0, 1.4)),
    Case("bert", targets=_targets(2.8, 1.4)),
)


def choose(models: list[str], accumulate: int | None, precisions: list[str]) -> list[Case]:
    """The cases of these models, or of all; with this accumulation and these precisions instead of their own."""
    for model in models:
        if model not in (*MODELS, "tiny"):
            raise ValueError(f"no model {model!r}; there are: {', '.join(MODELS)}")
    chosen = []
    for model in dict.fromkeys(models or MODELS):
        own = [case for case in CASES if case.model == model and accumulate in (None, case.accumulate)]
        for case in own or [Case(model, accumulate or 1)]:
            wanted = tuple(dict.fromkeys(precisions)) or case.precisions
            chosen.append(Case(model, case.accumulate, wanted, case.targets))
    return chosen
