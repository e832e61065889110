"""From a config to an advice: count, measure rates, predict, check, look for what to change, look at other devices.

Reads top to bottom in advise(). What takes time is a part that is kept (bench/study.py), or not (Unkept).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from ... import preparation
from ...backends import choosing
from ...machine import load
from ...recipes.config import Config
from . import changes as rules
from . import devices as other_devices
from . import overhead, replay
from . import subject as subjects
from .calls import Counted
from .check import Steps
from .prediction import Prediction, predict
from .rates import Measured
from .subject import Subject

RATES, CHECK, DEVICES = "rates", "check", "devices"


class Kept(Protocol):
    """A Study, as far as it is needed here."""

    @property
    def parts(self) -> dict[str, Any]: ...

    def left(self, names: Sequence[str]) -> Iterator[str]: ...

    def record(self, name: str, part: Mapping[str, Any], said: str = "") -> None: ...


@dataclass
class Unkept:
    """For whoever asks from Python: nothing is written."""

    parts: dict[str, Any] = field(default_factory=dict)

    def left(self, names: Sequence[str]) -> Iterator[str]:
        yield from names

    def record(self, name: str, part: Mapping[str, Any], said: str = "") -> None:
        self.parts[name] = dict(part)


@dataclass(frozen=True)
class Advice:
    """content: plain JSON, of which str() makes a text."""

    content: dict[str, Any]

    @property
    def prediction(self) -> Prediction:
        return Prediction.from_json(self.content["prediction"])

    def __str__(self) -> str:
        from . import text

        return "\n".join(text.lines(self.content))


def advise(
    config: Config,
    check: Callable[[], dict[str, Any]] | None,
    *,
    changes: bool = True,
    devices: bool = True,
    carbon: float | None = None,
    kept: Kept | None = None,
) -> Advice:
    """check: a short run, as check.py has them; None: none."""
    kept = kept or Unkept()
    with replay.setting(config.precision, config.threads) as precision:
        memory, available = subjects.estimate_memory(config)  # first: what follows is memory of this process, too
        subject = subjects.of(config)
        counted = subject.count(precision)
        for part in kept.left([RATES, *([CHECK] if check else [])]):
            if part == RATES:
                busy = load.load() if load.is_high() else None
                rates = _measure(counted, subject, precision)
                at_best = f"{rates.peak:.0f} GFLOP/s at best"
                said = f"{len(rates.products)} products measured, {at_best}"
                kept.record(RATES, rates.as_json() | {"busy": busy}, said)
            elif check is not None:
                checked = check()
                kept.record(CHECK, checked, f"{checked['milliseconds']['median']:.4g} ms a step")
        rates = Measured.from_json(kept.parts[RATES], subjects.DTYPES[precision])
        found = predict(counted, subjects.step_of(subject, memory, precision), rates)
        wanted = _wanted(config, precision, found, sum(memory.values()), available) if changes else {}
        device = other_devices.found() if devices else None
        for part in kept.left([*wanted, *([DEVICES] if device else [])]):
            if device is not None and part == DEVICES:
                kept.record(DEVICES, _devices(subject, device))
                continue
            entry = rules.evaluate(wanted[part], subject, found, memory["process"], _by_precision(precision, rates))
            kept.record(part, entry, entry["trouble"] or f"{entry['gain']:.2f}x samples a second, predicted")
    content = _content(subject, precision, memory, available, found, kept.parts, carbon)
    content["changes"] = [_plain(kept.parts[name]) for name in wanted]
    content["devices"] = kept.parts.get(DEVICES) if device else None
    content["looked_for_devices"] = devices
    content["is_recipe"] = not isinstance(kept, Unkept)
    return Advice(content)


def _measure(counted: Counted, subject: Subject, precision: str) -> Measured:
    rates = subjects.rates_of(precision)
    rates.measure(counted.calls, (False, True) if subject.config.accumulate > 1 else (False,))
    rates.overhead = overhead.measure(precision, rates.dtype, rates.peak)
    for mix in ("read", "write", "update"):
        rates.bandwidth(mix, 1e9)
    return rates


def _by_precision(precision: str, rates: Measured) -> Callable[[str], Measured]:
    """Rates of products are those of a precision; all else is the machine's."""

    def of(other: str) -> Measured:
        if other == precision:
            return rates
        return replace(subjects.rates_of(other), curves=rates.curves, overhead=rates.overhead)

    return of


def _wanted(config: Config, precision: str, found: Prediction, memory: int, available: int) -> dict[str, rules.Change]:
    return {f"change {c.name}": c for c in rules.candidates(config, precision, found, memory, available)}


def _plain(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "said"}


def _devices(subject: Subject, device: torch.device) -> dict[str, Any]:
    """Steps of a quarter, half, one and two micro-batches, on the CPU by ours and there by plain PyTorch."""
    config, model = subject.config, subject.task.build_model()
    sizes = sorted({max(1, round(config.micro_batch * share)) for share in (0.25, 0.5, 1, 2)})
    batches = {size: subjects.of(config.replace(micro_batch=size)).batch for size in sizes}
    other = other_devices.Trained(model, subject.loss, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with replay.quiet():
        model, fast = preparation.prepare(model.train(), optimizer, precision=config.precision, clip=config.clip)
    try:

        def on_cpu(batch: Any) -> float:
            steps = Steps(model, fast, subject.loss, batch, accumulate=1)
            return other_devices.timed(lambda: steps(1))

        return other_devices.compare(on_cpu, other, batches)
    finally:
        with replay.quiet():
            preparation.restore(model)


# ---- what it comes to ------------------------------------------------------------------------------------------------


def _content(
    subject: Subject, precision: str, memory: dict[str, int], available: int, found: Prediction,
    parts: Mapping[str, Any], carbon: float | None,
) -> dict[str, Any]:  # fmt: skip
    config, task = subject.config, subject.task
    checked = _plain(parts[CHECK]) if CHECK in parts else None
    return {
        "recipe": config.recipe,
        "parameters": subject.num_parameters,
        "micro_batch": config.micro_batch,
        "accumulate": config.accumulate,
        "unit": task.unit,
        "units_per_step": subject.num_samples * task.units_per_sample,
        "precision": precision,
        "reason": choosing.choose(config.precision).reason,
        "prediction": found.as_json(),
        "memory": {"parts": memory, "bytes": sum(memory.values()), "available": available},
        "batch_seconds": subject.batch_seconds,
        "unknown_products": parts[RATES]["unknown"],
        "overhead_seconds": parts[RATES]["overhead"],
        "busy": parts[RATES]["busy"],  # the load, if it was high before rates were measured
        "check": checked,
        "errors": _errors(found, memory, checked),
        "energy": _energy(found, checked, subject.num_samples, carbon),
        "bottleneck": _bottleneck(found, checked),
    }


def _errors(found: Prediction, memory: Mapping[str, int], checked: Mapping[str, Any] | None) -> dict[str, float | None]:
    """Of the prediction, as a share of what was measured: -0.1 is a tenth too low. None: not measured."""
    if checked is None:
        return {"time": None, "memory": None}
    peak = checked["peak_bytes"]
    return {
        "time": 1e3 * found.seconds / checked["milliseconds"]["median"] - 1,
        "memory": None if peak is None else sum(memory.values()) / peak - 1,
    }


def _energy(
    found: Prediction, checked: Mapping[str, Any] | None, num_samples: int, carbon: float | None
) -> dict[str, Any]:
    """Of a step: the power of the short run times the time that is predicted. Nothing where none was measured."""
    if checked is None or checked["watts"] is None:
        why = "no short run was made" if checked is None else checked["energy"].removeprefix("unavailable: ")
        return {"measured": False, "why": why}
    joules = checked["watts"] * found.seconds
    content = {"measured": True, "watts": checked["watts"], "joules": joules, "joules_a_sample": joules / num_samples}
    return content if carbon is None else content | {"carbon_grams": joules / 3.6e6 * carbon, "grams_a_kwh": carbon}


def _bottleneck(found: Prediction, checked: Mapping[str, Any] | None) -> dict[str, Any]:
    """The kind with the largest share; the time of all lines at their limits is as fast as a step can get here."""
    kind, seconds = next(iter(found.by_kind().items()))
    own = [line for line in found.lines if line.kind == kind]
    limits: dict[str, float] = {}
    for line in own:
        limits[line.limit] = limits.get(line.limit, 0.0) + line.seconds
    at_limits = sum(min(1.0, line.of_limit) * line.seconds for line in found.lines)
    real = found.seconds if checked is None else checked["milliseconds"]["median"] / 1e3
    return {
        "kind": kind, "share": seconds / found.seconds, "limit": max(limits, key=lambda limit: limits[limit]),
        "of_limit": sum(min(1.0, line.of_limit) * line.seconds for line in own) / seconds,
        "seconds_at_limits": at_limits, "step_of_limits": at_limits / real,
    }  # fmt: skip
