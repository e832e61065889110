"""Which precision and which library multiply fastest here, measured with the products of training.

A linear layer costs three products a step, forward and backward: x W^T, g W and g^T x. They are timed as ops/linear.py
computes them, for each dtype and each of its backends, best of several calls in turns, in about two seconds. The rates
are cached by CPU, kernels, threads and versions. From them come the backend of each dtype, simply the fastest, and what
precision "auto" means: bf16 where its best products are at least 1.15 times as fast as the best in fp32, else fp32.
Less would not pay for the rounding. A precision that is asked for is taken, and the reason says what was measured.

Environment: `FULLSTRIDE_PRECISION` is what "auto" means instead. `FULLSTRIDE_CACHE` is the folder of the cache, else
$XDG_CACHE_HOME/fullstride or ~/.cache/fullstride. Deleting products.json there means measuring anew.
"""

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from .. import __version__, _native
from ..ops import linear
from . import cpu

MARGIN = 1.15
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_SHAPES = ((512, 768, 768), (128, 2048, 2048))  # rows, in, out: a transformer's and an MLP's
_LEAST_TURNS, _MOST_TURNS, _SECONDS = 3, 10, 0.6  # at one shape
# A candidate is given up if the better of two calls took so many times the best one's, and long enough that this was
# not the compiling of a first call: bf16 without its instructions, fp16 nearly everywhere.
_HOPELESS, _HOPELESS_SECONDS = 4.0, 0.1

Rates = dict[str, dict[str, float]]
"""GFLOP/s by precision and backend; 0 for one that cannot run."""


@dataclass(frozen=True)
class Choice:
    precision: str  # "fp32", "bf16" or "fp16"
    reason: str
    backends: dict[str, str]  # of ops/linear.py, by the name of the torch dtype
    rates: Rates


def choose(wish: str = "auto", cache: bool = True) -> Choice:
    """What to train in: `wish`, unless it is "auto". `cache`: take rates measured before, and keep new ones."""
    wish, why = _wished(wish)
    precisions = ["fp32", "bf16"] + ["fp16"] * (wish == "fp16")
    rates = _recall() if cache else {}
    missing = [precision for precision in precisions if not _complete(precision, rates)]
    if missing:
        # fp32 is in every run: rates from different times are not to be compared. fp16 is compared with nothing, and
        # must not replace the rates of a quiet machine, and so what "auto" means, by those of a busy one.
        found = measure(precisions)
        rates = found | rates | {"fp16": found["fp16"]} if missing == ["fp16"] else rates | found
        if cache:
            _keep(rates)
    return _decide(wish, why, rates)


def recall() -> Choice | None:
    """What choose() would say, if it need not measure."""
    rates = _recall()
    return _decide(*_wished("auto"), rates) if all(_complete(name, rates) for name in ("fp32", "bf16")) else None


def measure(precisions: Collection[str]) -> Rates:
    """GFLOP/s of the three products of a linear layer. Leaves random numbers and backends as they were."""
    candidates = [
        _Candidate(name, backend) for name in precisions for backend in linear.backends(_DTYPES[name])
    ]  # fmt: skip
    before = {dtype: linear.backend(dtype) for dtype in (torch.float32, torch.bfloat16)}
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            for shape in _SHAPES:
                _race([candidate for candidate in candidates if not candidate.hopeless], shape)
    finally:
        for dtype, backend in before.items():
            linear.set_backend(dtype, backend)
    return {
        name: {candidate.backend: candidate.rate for candidate in candidates if candidate.precision == name}
        for name in precisions
    }  # fmt: skip


class _Candidate:
    def __init__(self, precision: str, backend: str) -> None:
        self.precision, self.backend = precision, backend
        self.hopeless = False
        self.best: dict[tuple[int, int, int], float] = {}  # seconds by shape

    @property
    def rate(self) -> float:
        seconds = sum(self.best.values())
        operations = sum(6 * rows * ins * outs for rows, ins, outs in self.best)
        return round(operations / seconds / 1e9, 1) if seconds else 0.0

    def products(self, shape: tuple[int, int, int]) -> Callable[[], object]:
        rows, ins, outs = shape
        dtype, generator = _DTYPES[self.precision], torch.Generator("cpu").manual_seed(0)

        def random(*sizes: int) -> torch.Tensor:
            return torch.randn(sizes, generator=generator, dtype=torch.float32, device="cpu").to(dtype)

        x, weight, dy = random(rows, ins).requires_grad_(), random(outs, ins).requires_grad_(), random(rows, outs)

        def run() -> object:
            if dtype is not torch.float16:  # which is torch's own
                linear.set_backend(dtype, self.backend)
            return torch.autograd.grad(linear.linear(x, weight), (x, weight), dy)

        return run


def _race(candidates: list[_Candidate], shape: tuple[int, int, int]) -> None:
    """Times the candidates at one shape, and marks those that need not be timed again."""
    runs = {}
    for candidate in candidates:
        try:
            candidate.products((8, 8, 8))()  # what a library does once in a process took MKL a second
            run = candidate.products(shape)
            candidate.best[shape] = min(_once(run), _once(run))
            runs[candidate] = run
        except (RuntimeError, NotImplementedError):  # this torch cannot multiply this dtype
            candidate.hopeless, candidate.best = True, {}
    for candidate in list(runs):
        slow = candidate.best[shape] > _HOPELESS * min(other.best[shape] for other in runs)
        if slow and candidate.best[shape] > _HOPELESS_SECONDS:
            candidate.hopeless = True
            del runs[candidate]
    deadline = time.perf_counter() + _SECONDS
    for turn in range(_MOST_TURNS):
        for candidate, run in runs.items():
            if turn < _LEAST_TURNS or time.perf_counter() < deadline:
                candidate.best[shape] = min(candidate.best[shape], _once(run))


def _once(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _wished(wish: str) -> tuple[str, str]:
    """The wish, that of the environment if it is "auto", and whose it is."""
    why = "as asked for"
    if wish == "auto" and os.environ.get("FULLSTRIDE_PRECISION"):
        wish = os.environ["FULLSTRIDE_PRECISION"]
        why = f"FULLSTRIDE_PRECISION={wish}"
    if wish not in ("auto", *_DTYPES):
        raise ValueError(f"precision: expected auto, {', '.join(_DTYPES)}; got {wish!r} ({why})")
    return wish, why


def _decide(wish: str, why: str, rates: Rates) -> Choice:
    best = {name: max(by_backend, key=by_backend.__getitem__) for name, by_backend in rates.items()}
    reached = {name: rates[name][backend] for name, backend in best.items()}
    said = {name: f"{reached[name]:.0f} GFLOP/s ({backend})" for name, backend in best.items()}
    backends = {"float32": best["fp32"], "bfloat16": best["bf16"]}
    if wish != "auto":
        measured = ", ".join(f"{name} {said[name]}" for name in dict.fromkeys(("fp32", "bf16", wish)))
        return Choice(wish, f"{why}; products measured: {measured}", backends, rates)
    ratio = reached["bf16"] / reached["fp32"]
    precision = "bf16" if ratio >= MARGIN else "fp32"
    compared = f"bf16 products reach {said['bf16']}, {ratio:.2f}x of fp32's {said['fp32']}"
    return Choice(precision, f"{compared}; auto takes bf16 from {MARGIN}x on", backends, rates)


def _complete(precision: str, rates: Rates) -> bool:
    """Whether the rates are those of all backends there are; the kernels may have come or gone since."""
    return rates.get(precision, {}).keys() == set(linear.backends(_DTYPES[precision]))


def _key() -> str:
    """What the rates hold for."""
    engine = f"torch {torch.__version__}, fullstride {__version__}"
    return f"{cpu.describe().model}, {_native.isa()}, {torch.get_num_threads()} threads, {engine}"


def _file() -> Path | None:
    folder = os.environ.get("FULLSTRIDE_CACHE")
    if folder:
        return Path(folder) / "products.json"
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:  # a user without a home
            return None
    return base / "fullstride" / "products.json"


def _recall() -> Rates:
    """The rates kept for this machine, nothing if there are none or they make no sense."""
    rates = _read().get(_key())
    if not isinstance(rates, dict) or not all(isinstance(values, dict) for values in rates.values()):
        return {}
    numbers = [rate for values in rates.values() for rate in values.values()]
    return rates if all(isinstance(rate, float) and math.isfinite(rate) and rate >= 0 for rate in numbers) else {}


def _read() -> dict[str, Rates]:
    file = _file()
    try:
        content = json.loads(file.read_text()) if file else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _keep(rates: Rates) -> None:
    """Beside what is kept for other conditions. Where nothing can be written, the next process measures again."""
    file = _file()
    if file is None:
        return
    content = _read() | {_key(): rates}
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as partial:
            json.dump(content, partial, indent=2)
        try:
            os.replace(partial.name, file)
        except OSError:
            os.unlink(partial.name)
