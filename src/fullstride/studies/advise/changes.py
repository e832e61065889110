"""What to change, by rules; what each change comes to is predicted by the same formula.

    fp32 where bf16 products are faster      precision auto
    several micro-batches in a step          fewer and larger ones: the same step, more rows for each product
    one micro-batch in a step                a larger one: more rows, and the optimizer's pass for more samples
    the optimizer's pass is a large part     more micro-batches in a step; its states in bf16 or 8 bits
    more memory than there is                activations in bf16, or smaller micro-batches and more of them
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...backends import choosing
from ...recipes.config import Config
from ...recipes.strict import overlay
from . import subject as subjects
from .prediction import OPTIMIZER, Prediction
from .rates import Measured
from .subject import Subject

PAYS = 1.02  # times the samples a second: less is within the error of the prediction
_LARGE_SHARE = 0.08  # of a step
_FULL = 0.9  # of the memory that there is
_OTHER_BATCH = "another batch size: its learning rate has to be found anew"


@dataclass(frozen=True)
class Change:
    fields: dict[str, Any]
    why: str
    keeps_step: bool = True  # the same samples a step, so the same training
    saves_memory: bool = False  # and is told for that

    @property
    def name(self) -> str:
        return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in _flat(self.fields).items())

    @property
    def options(self) -> str:
        """As the command line takes them."""
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in _flat(self.fields).items())


def candidates(config: Config, precision: str, found: Prediction, memory: int, available: int) -> list[Change]:
    """memory: at most, in bytes; available: how much there is."""
    changes = []
    if precision == "fp32" and choosing.choose("auto").precision != "fp32":
        changes.append(Change({"precision": "auto"}, "bf16 products are faster here, and activations take half"))
    if memory > _FULL * available:
        return changes + _smaller(config, precision)
    size, count = config.micro_batch, config.accumulate
    if count > 1:
        factors = [factor for factor in (2, 4) if count % factor == 0] or [count]
        changes += [
            Change({"micro_batch": factor * size, "accumulate": count // factor}, "the same step, larger products")
            for factor in factors
        ]
    else:
        changes += [
            Change({"micro_batch": factor * size}, f"more rows for each product; {_OTHER_BATCH}", keeps_step=False)
            for factor in (2, 4)
        ]
    if found.by_kind().get(OPTIMIZER, 0.0) > _LARGE_SHARE * found.seconds:
        changes += _fewer_updates(config)
    return changes


def _smaller(config: Config, precision: str) -> list[Change]:
    changes = []
    if precision == "fp32" and config.activations == "same":
        why = "what is kept for backward takes half"
        changes.append(Change({"activations": "bf16"}, why, saves_memory=True))
    if config.micro_batch > 1:
        fields = {"micro_batch": config.micro_batch // 2, "accumulate": 2 * config.accumulate}
        changes.append(Change(fields, "the same step in smaller parts", saves_memory=True))
    return changes


def _fewer_updates(config: Config) -> list[Change]:
    why = f"the optimizer's pass once for four times the samples; {_OTHER_BATCH}"
    changes = [Change({"accumulate": 4 * config.accumulate}, why, keeps_step=False)]
    if config.optimizer.state_precision == "fp32" and config.optimizer.name != "sgd":
        fields = {"optimizer": {"state_precision": "bf16"}}
        changes.append(Change(fields, "the optimizer moves half as many bytes of states"))
    return changes


def evaluate(
    change: Change, base: Subject, before: Prediction, process: int, rates_of: Callable[[str], Measured]
) -> dict[str, Any]:
    """How many times the samples a second, and the memory; or why it cannot be. rates_of: a precision."""
    entry: dict[str, Any] = {
        "name": change.name, "options": change.options, "why": change.why, "keeps_step": change.keeps_step,
        "saves_memory": change.saves_memory,
    }  # fmt: skip
    try:
        config = overlay(base.config, change.fields)
        precision = choosing.choose(config.precision).precision
        subject = subjects.of(config)
        memory, available = subjects.estimate_memory(config, process)
        found = subjects.prediction_of(subject, memory, precision, rates_of(precision))
    except ValueError as error:  # more samples than there are, say
        return entry | {"trouble": str(error)}
    speed = subject.num_elements / found.seconds, base.num_elements / before.seconds
    peak = sum(memory.values())
    return entry | {
        "trouble": "", "seconds": found.seconds, "gain": speed[0] / speed[1], "memory": peak,
        "fits": peak <= available, "by_kind": found.by_kind(),
    }  # fmt: skip


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    return {
        key: item
        for name, value in fields.items()
        for key, item in (
            _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
        ).items()
    }
