"""One side of benchmarks/fastspeech2_profile.py: a process that trains FastSpeech 2 and times its parts.

Run by its path, so that the process of stock PyTorch never imports Fullstride: `python fastspeech2_side.py CONFIG`, as
JSON what side.py of `fullstride bench step` takes, and {"side": its path}. It writes one line of facts, with what the
memory of a step is for, then answers each {"steps": n} by a list of n steps:

    {"phases": {name: seconds}, "forward": {part: seconds}, "backward": {part: seconds}}

Each part's input and output pass an identity whose backward looks at the clock. Backward goes through the nodes in the
reverse order of forward, so what passes between the mark of a part's output and that of its input is that part's.
"""

import contextlib
import importlib.util
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

MODULES = {
    "embedding": "embedding", "encoder": "encoder", "duration_predictor": "duration predictor",
    "pitch_predictor": "pitch predictor", "energy_predictor": "energy predictor",
    "pitch_embedding": "pitch and energy embeddings", "energy_embedding": "pitch and energy embeddings",
    "decoder": "decoder", "projection": "projection",
}  # fmt: skip
REGULATOR, REST = "length regulator", "positions, sums, loss"
PARTS = (
    "embedding", "encoder", "duration predictor", "pitch predictor", "energy predictor", "pitch and energy embeddings",
    REGULATOR, "decoder", "projection", REST,
)  # fmt: skip
_WARM_UP = 2  # steps


class Clock:
    """Seconds of forward and backward by part. Between the parts runs the rest."""

    def __init__(self) -> None:
        self.direction = "forward"
        self.seconds = _nothing()
        self._open, self._since = REST, time.perf_counter()

    def enter(self, part: str) -> float:
        """The time at which it begins."""
        now = time.perf_counter()
        self.seconds[self.direction][self._open] += now - self._since
        self._open, self._since = part, now
        return now

    def start(self, direction: str) -> float:
        """The time at which it begins, with the rest."""
        self.direction, self._open, self._since = direction, REST, time.perf_counter()
        return self._since

    def mark(self, x: Any, part: str) -> Any:
        """x, whose gradient begins that part of backward when it comes."""
        return _Mark.apply(x, self, part) if isinstance(x, Tensor) and x.requires_grad else x

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, of a tensor and more, as that part."""

        def timed(x: Tensor, *others: Any) -> Any:
            self.enter(part)
            found = function(self.mark(x, REST), *others)
            first, *more = found if isinstance(found, tuple) else (found,)
            first = self.mark(first, part)
            self.enter(REST)
            return (first, *more) if more else first

        return timed


def _nothing() -> dict[str, defaultdict[str, float]]:
    return {"forward": defaultdict(float), "backward": defaultdict(float)}


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, part: str) -> Tensor:
        ctx.clock, ctx.part = clock, part
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None, None]:
        ctx.clock.enter(ctx.part)
        return dx, None, None


def watch(model: nn.Module, file: ModuleType, clock: Clock) -> None:
    """From now on the parts of this model tell the clock. file: where its length regulator is."""
    for name, part in MODULES.items():
        module = model.get_submodule(name)

        def before(_: Any, args: tuple[Any, ...], part: str = part) -> tuple[Any, ...]:
            clock.enter(part)
            return clock.mark(args[0], REST), *args[1:]

        def behind(_: Any, args: Any, output: Any, part: str = part) -> Any:
            output = clock.mark(output, part)
            clock.enter(REST)
            return output

        module.register_forward_pre_hook(before)
        module.register_forward_hook(behind)
    file.repeat = clock.around(REGULATOR, file.repeat)  # type: ignore[attr-defined]


def timed_step(training: Any, clock: Clock, data: tuple[Any, float]) -> dict[str, Any]:
    phases: defaultdict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        has_parts = name in clock.seconds
        began = clock.start(name) if has_parts else time.perf_counter()
        yield
        ended = clock.enter(REST) if has_parts else time.perf_counter()
        phases[name if has_parts else "optimizer"] += ended - began

    clock.seconds = _nothing()
    training.step(*data, phase)
    return {"phases": phases, **clock.seconds}


def memory(training: Any) -> dict[str, int]:
    """Bytes of parameters (of split weights both halves), the optimizer, gradients and activations, after a step.

    activations: what forward keeps for backward, each piece of memory once.
    """
    model, optimizer, saved = training.plain, training.optimizer, []
    states = [(key, x) for state in optimizer.state.values() for key, x in state.items() if isinstance(x, Tensor)]
    parameters = _sizes([*model.parameters(), *model.buffers(), *(x for key, x in states if key == "weight_lo")])

    def keep(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    [([batch, *_], _)] = training.data(1)
    optimizer.zero_grad()
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=training.autocast):
        loss = training.work.loss(training.model, batch)
    given = _sizes(batch)
    activations = {key: size for key, size in _sizes(saved).items() if key not in parameters and key not in given}
    saved.clear()
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if "fullstride" in sys.modules:  # ours keeps memory for them
        from fullstride.ops import _kept_gradients

        gradients += _kept_gradients.buffers(list(model.parameters()))
    rest = {key: size for key, size in _sizes(x for _, x in states).items() if key not in parameters}
    found = {"parameters": parameters, "optimizer": rest, "gradients": _sizes(gradients), "activations": activations}
    return {f"{name}_bytes": sum(sizes.values()) for name, sizes in found.items()}


def _sizes(tensors: Iterable[Tensor]) -> dict[int, int]:
    return {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("side", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    config = json.loads(sys.argv[1])
    here = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != here]  # torch must find no module there
    side = load(Path(config["side"]))
    with side.answers() as out:
        if config.get("fullstride"):
            import fullstride  # noqa: F401  before anything is allocated
        training, clock = side.Training(config), Clock()
        for data in training.data(_WARM_UP):
            training.step(*data)
        facts = training.facts() | {"memory": memory(training)}
        watch(training.plain, sys.modules["fastspeech2"], clock)
        print(json.dumps(facts), file=out)
        for line in sys.stdin:
            steps = training.data(json.loads(line)["steps"])  # before the clock starts
            print(json.dumps([timed_step(training, clock, data) for data in steps]), file=out)


if __name__ == "__main__":
    main()
