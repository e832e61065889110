"""Which precision and which library multiply fastest here, measured with the products of training.

A linear layer costs three products a step, forward and backward: x W^T, g W and g^T x. They are timed as
ops/linear.py computes them, for each dtype, each of its backends and each kind of shape, in a child process
(trials/), which first tries whether they work at all. The findings are cached (cache.py). From them come the backend
of each dtype and shape, the fastest, ours where it is within 5 %, and what precision "auto" means: bf16 where its
best products are at least 1.15 times as fast as the best in fp32, as a mean over the shapes of the time that the same
work takes, else fp32. Less would not pay for the rounding. A precision that is asked for is taken, and the reason
says what was measured; one that would end or falsify the training is refused.

Findings that were taken while others used the machine are used and taken again later, by a prepare() that meets it
quiet, at most once an hour. A candidate that died, hung or was wrong is not tried again.

Environment: `FULLSTRIDE_PRECISION` is what "auto" means instead.
"""

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import torch

from .. import _native, runtime
from ..machine import load, onednn
from ..ops import products
from . import cache
from .cache import Findings
from .trials import parent, verdicts
from .trials.parent import Rates

MARGIN = 1.15
# Our product is taken unless another is more than so many times as fast: in training it also adds bias and activation,
# adds to an older gradient in place and sums squares, which the race does not ask for. MLP of 50M parameters,
# accumulation of 8, on Zen 4: 966 ms a step, by torch's product, level with it in the race, 1078.
_OURS = 1.05
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_CHOSEN = ("fp32", "bf16")  # have several backends
_INT8 = verdicts.operation_name("int8", "product")
_AGAIN = 3600.0  # seconds until findings of a busy machine are taken again


@dataclass(frozen=True)
class Choice:
    precision: str  # "fp32", "bf16" or "fp16"
    reason: str
    backends: dict[str, dict[str, str]]  # of ops/linear.py, by the name of the torch dtype and shape
    rates: Rates
    verdicts: dict[str, str] = field(default_factory=dict)  # by candidate: see trials/verdicts.py
    notes: list[str] = field(default_factory=list)  # on how good the rates are

    def gflops(self, precision: str) -> float:
        """What the best products reach, as a mean over the shapes; 0 where nothing was measured."""
        return _reached(self.rates.get(precision, {}))

    def peak(self, precision: str) -> float:
        """What the best product reaches at the shape that suits it best; 0 where nothing was measured."""
        rates = self.rates.get(precision, {}).values()
        return max((rate for by_backend in rates for rate in by_backend.values()), default=0.0)

    def apply(self) -> None:
        """Lets the whole process multiply so."""
        products.exclude(_excluded(self.verdicts))
        for dtype, by_shape in self.backends.items():
            for shape, name in by_shape.items():
                if name in products.backends(getattr(torch, dtype)):
                    products.set_backend(getattr(torch, dtype), name, shape)

    def lines(self) -> list[str]:
        """Who multiplies what, and how fast, for people."""
        text = []
        for precision in _CHOSEN:
            rates = self.rates.get(precision, {})
            chosen = self.backends[_name(precision)]
            parts = [
                f"{shape} {name}" + (f" {rates[shape][name]:.0f} GFLOP/s" if name in rates.get(shape, {}) else "")
                for shape, name in chosen.items()
            ]
            text.append(f"{precision}: {', '.join(parts)}")
        return text


def choose(wish: str = "auto", use_cache: bool = True, renew: bool = False) -> Choice:
    """What to train in: `wish`, unless it is "auto". ValueError if that cannot be used here.

    use_cache: take what was found before, and keep what is new. renew: take what a busy machine gave again, if it is
    time for that.
    """
    wish, why = _wished(wish)
    precisions = ["fp32", "bf16"] + ["fp16"] * (wish == "fp16")
    if not runtime.current().failed_isa:
        _native.step_up()
    findings, notes = _find(precisions, use_cache, renew)
    trouble = findings.verdicts.get(verdicts.product_name("bf16", "native"), verdicts.FINE)
    isa = _native.isa()
    if verdicts.is_settled(trouble) and trouble != verdicts.FINE and _native.fall_back():
        # The matrix unit is shown but does not work. Attention uses it, too, so all kernels go on without it.
        runtime.current().failed_isa = isa
        findings, notes = _find(precisions, use_cache, renew)
        notes = [*notes, f"without {isa}, whose bf16 product {trouble}"]
    return _decide(wish, why, findings, notes)


def recall() -> Choice | None:
    """What choose() would say, if it need not measure."""
    found = cache.recall(torch.get_num_threads())
    return _decide(*_wished("auto"), found, []) if found is not None and _complete(found, _CHOSEN) else None


def describe(measure: bool = True) -> Choice | None:
    """For people to see: what "auto" means. If FULLSTRIDE_PRECISION asks for what cannot be, the reason says so."""
    try:
        return choose() if measure else recall()
    except ValueError as error:
        return replace(choose("fp32"), reason=str(error))


def measure(precisions: Collection[str], known: Mapping[str, str] | None = None) -> Findings:
    """Tries everything of which no verdict is known, then races these precisions, in a child process."""
    known = known or {}
    backends = {name: products.built(dtype) for name, dtype in _DTYPES.items()}
    candidates = [verdicts.product_name(name, backend) for name in backends for backend in backends[name]]
    candidates += [verdicts.operation_name("bf16", operation) for operation in verdicts.OPERATIONS] + [_INT8]
    racers = [(name, backend) for name in precisions for backend in backends[name]]
    racers = [racer for racer in racers if known.get(verdicts.product_name(*racer), verdicts.FINE) == verdicts.FINE]
    watch, isa = load.Watch(), _native.isa()
    report = parent.run(
        [name for name in candidates if name not in known], racers, torch.get_num_threads(),
        {"FULLSTRIDE_NATIVE": "0"} if isa == "torch" else {"FULLSTRIDE_ISA": isa},
    )  # fmt: skip
    found = dict(known) | report.verdicts
    unsettled = [f"no time for {shape}" for shape in report.skipped]
    unsettled += [f"{name} {verdict}" for name, verdict in found.items() if not verdicts.is_settled(verdict)]
    busy = ", ".join(filter(None, [watch.busy(report.spread), *unsettled]))
    return Findings(found, report.rates, time.time(), busy, report.spread, report.trouble)


# ---- what is known, and what is to be found out -------------------------------------------------------------------


def _find(precisions: Collection[str], use_cache: bool, renew: bool) -> tuple[Findings, list[str]]:
    """The findings, and what is to be said of them."""
    if not use_cache:
        return measure(precisions), []
    threads = torch.get_num_threads()

    def recall_settled() -> Findings | None:
        found = cache.recall(threads)
        settled = found is not None and _complete(found, precisions) and not (renew and _is_due(found))
        return found if settled else None

    found = recall_settled()
    if found is not None:
        return found, []
    with cache.lock():
        found = recall_settled()  # another process may have measured meanwhile
        if found is not None:
            return found, []
        found = _update(cache.recall(threads), precisions)
        trouble = cache.keep(found, threads)
    return found, [f"not kept: {trouble}"] if trouble else []


def _update(old: Findings | None, precisions: Collection[str]) -> Findings:
    if old is None:
        return measure(precisions)
    known = {name: verdict for name, verdict in old.verdicts.items() if verdicts.is_settled(verdict)}
    if _complete(old, _CHOSEN) and not _complete(old, precisions):
        # fp16 is compared with nothing, and must not replace the rates of a quiet machine, and so what "auto" means, by
        # those of a busy one.
        new = measure(["fp16"], known)
        return replace(old, verdicts=new.verdicts, rates=old.rates | new.rates, trouble=new.trouble)
    new = measure([*_CHOSEN, *(["fp16"] if "fp16" in {*precisions, *old.rates} else [])], known)
    if new.busy and old.rates and _complete(old, precisions) and new.spread >= old.spread:
        return replace(old, verdicts=new.verdicts, taken=new.taken)  # no better than before: not again for an hour
    return new


def _complete(found: Findings, precisions: Collection[str]) -> bool:
    """Whether all backends that there are were tried and raced; the kernels may have come or gone since."""
    if found.trouble:  # of this process: it would not get further by trying again
        return True
    for precision in precisions:
        names = {backend: verdicts.product_name(precision, backend) for backend in products.built(_DTYPES[precision])}
        if any(name not in found.verdicts for name in names.values()):
            return False
        fine = [backend for backend, name in names.items() if found.verdicts[name] == verdicts.FINE]
        if fine and not found.rates.get(precision):
            return False
    return True


def _is_due(found: Findings) -> bool:
    return bool(found.busy) and abs(time.time() - found.taken) > _AGAIN and not load.is_high()


# ---- what follows from it ----------------------------------------------------------------------------------------


def _wished(wish: str) -> tuple[str, str]:
    """The wish, that of the environment if it is "auto", and whose it is."""
    why = "as asked for"
    if wish == "auto" and os.environ.get("FULLSTRIDE_PRECISION"):
        wish = os.environ["FULLSTRIDE_PRECISION"]
        why = f"FULLSTRIDE_PRECISION={wish}"
    if wish not in ("auto", *_DTYPES):
        raise ValueError(f"precision: expected auto, {', '.join(_DTYPES)}; got {wish!r} ({why})")
    return wish, why


def _decide(wish: str, why: str, found: Findings, notes: list[str]) -> Choice:
    if onednn.is_late():  # what the child found, in time for the cap, does not hold for this process
        late = {verdicts.product_name("bf16", name): verdicts.not_tried(onednn.LATE) for name in ("torch", "onednn")}
        found = replace(found, verdicts=found.verdicts | late)
    best = {name: _fastest(name, found) for name in _DTYPES}
    reached = {name: _reached(found.rates.get(name, {})) for name in _DTYPES}
    said = {name: f"{reached[name]:.0f} GFLOP/s ({_who(best[name])})" for name in _DTYPES}
    if found.busy:
        notes = [*notes, f"taken under load ({found.busy}); will be taken again when the machine is quiet"]

    def choice(precision: str, reason: str) -> Choice:
        backends = {_name(name): best[name] for name in _CHOSEN}
        return Choice(precision, reason, backends, found.rates, found.verdicts, notes)

    if wish != "auto":
        trouble = _unusable(wish, found)
        if trouble:
            raise ValueError(f"precision: {wish} ({why}) cannot be used here: {trouble}; or take fp32")
        if not found.rates:
            return choice(wish, f"{why}; nothing was measured: {found.trouble}")
        measured = ", ".join(f"{name} {said[name]}" for name in dict.fromkeys((*_CHOSEN, wish)))
        return choice(wish, f"{why}; products measured: {measured}")
    trouble = _unusable("bf16", found)
    if trouble:
        return choice("fp32", f"bf16 cannot be used here: {trouble}")
    ratio = reached["bf16"] / reached["fp32"] if reached["fp32"] else 0.0
    precision = "bf16" if ratio >= MARGIN else "fp32"
    compared = f"bf16 products reach {said['bf16']}, {ratio:.2f}x of fp32's {said['fp32']}"
    return choice(precision, f"{compared}; auto takes bf16 from {MARGIN}x on")


def _unusable(precision: str, found: Findings) -> str:
    """Why this precision must not be trained in; nothing if it may."""
    if precision == "fp32":
        return ""
    if onednn.is_late():
        return onednn.LATE
    names = [verdicts.product_name(precision, backend) for backend in products.built(_DTYPES[precision])]
    tried = {name: found.verdicts[name] for name in names if name in found.verdicts}
    if not tried:
        return f"it could not be tried in a child process ({found.trouble}); `fullstride info` tries it, too"
    reasons = [] if verdicts.FINE in tried.values() else verdicts.lines(tried)
    if precision == "bf16":  # what a model calls besides products would still end the process
        operations = {verdicts.operation_name(precision, name) for name in verdicts.OPERATIONS}
        others = {name: found.verdicts.get(name, verdicts.not_tried(found.trouble)) for name in sorted(operations)}
        reasons += verdicts.lines({name: text for name, text in others.items() if verdicts.is_harmful(text)})
    if not reasons:
        return ""
    illegal = any("SIGILL" in reason for reason in reasons) and onednn.limit() != onednn.CAP
    hint = f"; set {onednn.VARIABLE}={onednn.CAP} before Python starts" if illegal else ""
    return f"{', '.join(reasons)}{hint}"


def _fastest(precision: str, found: Findings) -> dict[str, str]:
    """The backend of each shape, that of many rows where it was not raced. One that is not fine is taken only if there
    is no other."""
    names = {backend: verdicts.product_name(precision, backend) for backend in products.BACKENDS}
    fine = [backend for backend, name in names.items() if found.verdicts.get(name) == verdicts.FINE]
    chosen = {}
    for shape in products.SHAPES:
        raced = found.rates.get(precision, {})
        by_backend = raced.get(shape) or raced.get("many rows", {})
        rates = {name: rate for name, rate in by_backend.items() if name in fine}
        chosen[shape] = max(rates, key=rates.__getitem__) if rates else (fine or ["torch"])[0]
        if "native" in rates and rates["native"] * _OURS >= max(rates.values()):
            chosen[shape] = "native"
    return chosen


def _reached(by_shape: Mapping[str, Mapping[str, float]]) -> float:
    """GFLOP/s over all shapes, if each has the same work to do: times add up, not rates."""
    best = [max(rates.values(), default=0.0) for rates in by_shape.values()]
    return len(best) / sum(1 / rate for rate in best) if best and all(best) else 0.0


def _who(by_shape: Mapping[str, str]) -> str:
    names = set(by_shape.values())
    return names.pop() if len(names) == 1 else ", ".join(f"{shape} {name}" for shape, name in by_shape.items())


def _excluded(found: Mapping[str, str]) -> dict[tuple[torch.dtype, str], str]:
    """By dtype and backend, why it must not be called."""
    excluded = {}
    for precision in _CHOSEN:
        for backend in products.BACKENDS:
            verdict = found.get(verdicts.product_name(precision, backend), verdicts.FINE)
            if verdict != verdicts.FINE and (precision != "fp32" or verdicts.is_settled(verdict)):
                excluded[_DTYPES[precision], backend] = verdict
    if all((torch.float32, backend) in excluded for backend in products.built(torch.float32)):
        excluded.pop((torch.float32, "torch"), None)  # a model without products would be of no use to anybody
    return excluded


def _name(precision: str) -> str:
    return str(_DTYPES[precision]).removeprefix("torch.")
