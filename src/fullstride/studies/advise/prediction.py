"""The time of a training step, from what it computes and what this machine measures.

    time = sum over products of operations / rate(product)
         + sum over passes of bytes / bandwidth(mix, bytes)
         + bytes of the optimizer's pass / bandwidth("update")
         + calls * overhead

The first, second and last are those of a micro-batch, times as many as a step has. A pass finds its tensors in a cache
if all that a micro-batch makes fits there: the bandwidth is that of its own size or of all of them together, whichever
is lower. Each line says which limit binds it: the time that its operations take at the peak of products, or that its
bytes take at the bandwidth beyond the caches, whichever is longer. That is its roofline; how near the line comes to it,
`of_limit` says. What is too small to come near either is bound by the cost of being called.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import costs
from .calls import Call, Counted, nbytes
from .rates import Rates

PRODUCTS, ATTENTION, PASSES, OPTIMIZER, CALLS = "products", "attention", "passes", "optimizer", "calls"
KINDS = {
    PRODUCTS: "matrix products",
    ATTENTION: "attention",
    PASSES: "passes over memory",
    OPTIMIZER: "the optimizer's pass",
    CALLS: "Python and autograd, call by call",
}
COMPUTE, BANDWIDTH, OVERHEAD = "compute", "bandwidth", "overhead"
_BEYOND = 1e12  # bytes: beyond every cache
_FAR = 0.05  # of a limit: what comes no nearer is too small to be bound by anything but being called


@dataclass(frozen=True)
class Step:
    """What a step is beside its micro-batches."""

    accumulate: int = 1
    update_bytes: int = 0  # that the optimizer reads and writes
    norm_bytes: int = 0  # of gradients that are read for their norm
    widened_bytes: int = 0  # of bf16 gradients that become fp32 when the second micro-batch is added
    num_tensors: int = 0  # that the optimizer goes through


@dataclass(frozen=True)
class Line:
    """One kind of pass of a step, all of its calls together."""

    kind: str  # of KINDS
    what: str
    phase: str  # forward, backward, optimizer
    num_calls: int
    flops: int
    nbytes: int
    seconds: float
    limit: str  # compute, bandwidth or overhead
    of_limit: float  # the time at that limit, as a share of seconds

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class Prediction:
    lines: tuple[Line, ...]  # the longest first
    peak: float  # GFLOP/s
    bandwidth: float  # GB/s beyond the caches, into another array

    @property
    def seconds(self) -> float:
        return sum(line.seconds for line in self.lines)

    @property
    def flops(self) -> int:
        return sum(line.flops for line in self.lines)

    @property
    def nbytes(self) -> int:
        return sum(line.nbytes for line in self.lines)

    def by_kind(self) -> dict[str, float]:
        """Seconds, the longest first."""
        sums = {kind: sum(line.seconds for line in self.lines if line.kind == kind) for kind in KINDS}
        return dict(sorted(((kind, seconds) for kind, seconds in sums.items() if seconds), key=lambda item: -item[1]))

    def as_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds, "flops": self.flops, "bytes": self.nbytes, "peak_gflops": self.peak,
            "bandwidth_gbs": self.bandwidth, "by_kind": self.by_kind(), "lines": [x.as_json() for x in self.lines],
        }  # fmt: skip

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "Prediction":
        lines = tuple(Line(**line) for line in content["lines"])
        return Prediction(lines, content["peak_gflops"], content["bandwidth_gbs"])


def predict(counted: Counted, step: Step, rates: Rates) -> Prediction:
    made = sum(nbytes(call.outputs.values()) for call in counted.calls)
    found = [line for call in counted.calls for line in _of_call(call, step, made, rates)]
    found += _of_step(step, rates)
    num_calls = counted.num_asked * step.accumulate + step.num_tensors
    if num_calls and rates.overhead:
        seconds = num_calls * rates.overhead
        found.append(Line(CALLS, "calls of functions and nodes", "all", num_calls, 0, 0, seconds, OVERHEAD, 1.0))
    lines = sorted(_merged(found), key=lambda line: -line.seconds)
    return Prediction(tuple(lines), rates.peak, rates.bandwidth("write", _BEYOND))


def _of_call(call: Call, step: Step, made: int, rates: Rates) -> list[Line]:
    """made: bytes of all results of a micro-batch."""
    lines, count = [], step.accumulate
    times: dict[str, float] = {}
    if call.is_product:
        first, later = rates.seconds(call), rates.seconds(call, adds=True) if count > 1 else (0.0, 0.0)
        times = {
            costs.FORWARD: first[0] + (count - 1) * later[0], costs.BACKWARD: first[1] + (count - 1) * later[1]
        }  # fmt: skip
        if call.is_backward:  # an operation that autograd calls: it is timed as one forward
            times[costs.BACKWARD] = times.pop(costs.FORWARD)
    for cost in costs.of(call):
        seconds = times.get(cost.phase)
        if seconds is None:
            bandwidth = min(rates.bandwidth(cost.mix, cost.nbytes), rates.bandwidth(cost.mix, max(made, cost.nbytes)))
            seconds = count * cost.nbytes / bandwidth / 1e9
        lines.append(_line(_kind(call), _what(call), cost.phase, count, count * cost.flops, count * cost.nbytes,
                           cost.mix, seconds, rates))  # fmt: skip
    return lines


def _of_step(step: Step, rates: Rates) -> list[Line]:
    passes = [
        ("weights and states are renewed", step.update_bytes, "update"),
        ("norm of the gradients", step.norm_bytes, "read"),
        ("bf16 gradients become fp32 sums", step.widened_bytes, "write"),
    ]
    return [
        _line(OPTIMIZER, what, OPTIMIZER, 1, 0, size, mix, size / rates.bandwidth(mix, size) / 1e9, rates)
        for what, size, mix in passes
        if size
    ]


def _line(
    kind: str, what: str, phase: str, num_calls: int, flops: int, size: int, mix: str, seconds: float, rates: Rates
) -> Line:
    computing, moving = flops / rates.peak / 1e9, size / rates.bandwidth(mix, _BEYOND) / 1e9
    limit = COMPUTE if computing > moving else BANDWIDTH
    share = max(computing, moving) / seconds if seconds else 1.0
    limit = OVERHEAD if share < _FAR else limit
    return Line(kind, what, phase, num_calls, flops, size, seconds, limit, share)


def _kind(call: Call) -> str:
    return ATTENTION if call.name == "attention" else PRODUCTS if call.is_product else PASSES


def _what(call: Call) -> str:
    """linear 2048 x 288 -> 768 + gelu, layers.*.mlp.up"""
    name, inputs = call.name, call.inputs
    if name in ("linear", "linear_cross_entropy"):
        (rows, ins), outs = inputs["x"].shape, inputs["weight"].shape[0]
        name = f"{name.replace('_', ' ')} {rows} x {ins} -> {outs}"
    elif call.is_of_torch and call.is_product:
        name = f"{call.options['operation']} {' by '.join(_sizes(form.shape) for form in inputs.values())}"
    elif name == "convolution":
        name = f"{call.options['operation']} {_sizes(inputs['x'].shape)} by {_sizes(inputs['weight'].shape)}"
    else:
        name = f"{name} {_sizes(next(iter(inputs.values())).shape)}" if inputs else name
    activation = call.options.get("activation", "none")
    name += f" + {activation}" if activation != "none" and call.is_product else ""
    name = f"sum + {name}" if call.options.get("residual") else name
    return name if call.path == "-" else f"{name}, {call.path}"


def _sizes(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "1"


def _merged(lines: Iterable[Line]) -> list[Line]:
    """One for all that do the same in the same phase."""
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.kind, line.what, line.phase), []).append(line)
    merged = []
    for (kind, what, phase), own in groups.items():
        seconds = sum(line.seconds for line in own)
        at_limit = sum(line.of_limit * line.seconds for line in own if line.seconds)
        merged.append(Line(
            kind, what, phase, sum(line.num_calls for line in own), sum(line.flops for line in own),
            sum(line.nbytes for line in own), seconds, own[0].limit, at_limit / seconds if seconds else 1.0,
        ))  # fmt: skip
    return merged
