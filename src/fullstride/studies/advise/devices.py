"""The CPU against another device of this machine: what each step costs there, and from which batch on it pays.

    step(batch) on the device = launches + transfer of the batch + synchronising + computing

Every part is measured: an operation on one number (launch), a large tensor to the device and back (transfer), waiting
for nothing (synchronise), the first step of torch.compile (compile), and whole training steps at several batch sizes
on both. The crossover is where the two curves meet, by interpolation between the sizes. Whatever the device is,
the code is the same: it takes torch.device("cpu") for another device as well, which is how it is tested.
"""

import copy
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

COMPILER = "inductor"  # the backend of torch.compile
NONE = "no CUDA or MPS device here: the CPU alone was looked at"
_LAUNCHES, _BLOCK, _REPEATS = 200, 64 << 20, 5  # operations; bytes of a transfer; times each
_STEPS, _SECONDS = 3, 2.0  # of each batch size: at least so many steps, at most about so many seconds

Loss = Callable[[nn.Module, Any], Any]


def found() -> torch.device | None:
    """The device that torch could train on beside the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return None


def synchroniser(device: torch.device) -> Callable[[], object]:
    """Waits until the device has done what it was told."""
    if device.type == "cuda":
        return torch.cuda.synchronize
    if device.type == "mps":
        return torch.mps.synchronize
    return lambda: None


def overheads(device: torch.device) -> dict[str, float]:
    """Seconds of a launch and of synchronising, GB/s of transfers both ways."""
    synchronise = synchroniser(device)
    number = torch.zeros(1, device=device)
    host = torch.ones(_BLOCK // 4, dtype=torch.float32, device="cpu")
    there = host.to(device, copy=True)
    synchronise()

    def launch() -> None:
        for _ in range(_LAUNCHES):
            number.add_(1)

    def send() -> None:
        there.copy_(host)
        synchronise()

    def fetch() -> None:
        host.copy_(there)
        synchronise()

    launched = _median(launch)
    synchronise()
    return {
        "launch_seconds": launched / _LAUNCHES,
        "synchronise_seconds": _median(synchronise),
        "to_device_gbs": _BLOCK / _median(send) / 1e9,
        "from_device_gbs": _BLOCK / _median(fetch) / 1e9,
    }


def _median(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class Trained:
    """A plain copy of the model on a device, with AdamW: seconds of a step, the batch's way there included."""

    def __init__(self, model: nn.Module, loss: Loss, device: torch.device) -> None:
        self.model = copy.deepcopy(model).to(device).train()
        self.loss, self.device = loss, device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.synchronise = synchroniser(device)

    def step(self, batch: Any) -> None:
        there = tree_map(lambda leaf: leaf.to(self.device) if isinstance(leaf, Tensor) else leaf, batch)
        self.optimizer.zero_grad()
        self.loss(self.model, there).backward()
        self.optimizer.step()
        self.synchronise()

    def seconds(self, batch: Any) -> float:
        return timed(lambda: self.step(batch))

    def compile_seconds(self, batch: Any) -> float:
        """What the first step of torch.compile takes beyond a later one."""
        inner = self.model
        compiled: Any = torch.compile(inner, backend=COMPILER)
        self.model = compiled
        try:
            start = time.perf_counter()
            self.step(batch)
            return max(0.0, time.perf_counter() - start - self.seconds(batch))
        finally:
            self.model = inner


def timed(step: Callable[[], object]) -> float:
    """The median of a few steps, after one to warm up."""
    step()
    times: list[float] = []
    while len(times) < _STEPS or (len(times) < 50 and sum(times) < _SECONDS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def compare(cpu: Callable[[Any], float], other: Trained, batches: Mapping[int, Any]) -> dict[str, Any]:
    """cpu(batch): seconds of a step on the CPU. batches: by their number of samples."""
    rows: list[dict[str, Any]] = []
    trouble = ""
    for size, batch in sorted(batches.items()):
        try:
            there = other.seconds(batch)
        except (RuntimeError, torch.OutOfMemoryError) as error:  # no room for it, or an operation it has not
            trouble = f"{size} samples: {(str(error).splitlines() or ['no word why'])[0]}"
            break
        rows.append({"samples": size, "cpu_seconds": cpu(batch), "device_seconds": there})
    content: dict[str, Any] = {"device": str(other.device), "rows": rows, "trouble": trouble, **overheads(other.device)}
    content |= {"compile_seconds": None, "compile_trouble": ""}
    try:
        content["compile_seconds"] = other.compile_seconds(batches[min(batches)])
    except Exception as error:  # of any kind: a compiler of others meets code of others
        content["compile_trouble"] = (str(error).splitlines() or ["no word why"])[0]
    content["crossover"] = crossover([(r["samples"], r["cpu_seconds"], r["device_seconds"]) for r in rows])
    return content


def crossover(rows: Sequence[tuple[int, float, float]]) -> float | None:
    """The batch from which on the device is faster: where CPU seconds / device seconds passes 1.

    Between two sizes the logarithm of that ratio goes along a line over the logarithm of the size. The smallest size if
    the device is faster at all of them, None if it is at none, or is no longer at the largest.
    """
    if not rows or rows[-1][1] <= rows[-1][2]:
        return None
    for (size, cpu, device), (next_size, next_cpu, next_device) in reversed(list(itertools.pairwise(rows))):
        low, high = math.log(cpu / device), math.log(next_cpu / next_device)
        if low <= 0 < high:
            return float(size * (next_size / size) ** (-low / (high - low)))
    return float(rows[0][0])


def lines(content: Mapping[str, Any]) -> list[str]:
    """For people."""
    text = [
        f"{content['device']}: a launch takes {1e6 * content['launch_seconds']:.1f} us, synchronising"
        f" {1e6 * content['synchronise_seconds']:.1f} us, transfers {content['to_device_gbs']:.1f} GB/s there and"
        f" {content['from_device_gbs']:.1f} back"
    ]
    if content["compile_seconds"] is None:
        text.append(f"torch.compile does not work there: {content['compile_trouble']}")
    else:
        text.append(f"torch.compile takes {content['compile_seconds']:.1f} s before the first step")
    for row in content["rows"]:
        ratio = row["cpu_seconds"] / row["device_seconds"]
        text.append(
            f"{row['samples']} samples: CPU {1e3 * row['cpu_seconds']:.4g} ms, {content['device']}"
            f" {1e3 * row['device_seconds']:.4g} ms, {ratio:.2f}x"
        )
    if content["trouble"]:
        text.append(f"not measured: {content['trouble']}")
    size = content["crossover"]
    text.append(
        f"crossover: {content['device']} is faster from a micro-batch of about {size:.3g} samples on"
        if size is not None
        else f"no crossover: the CPU is faster at every size that was measured, or at the largest ({content['device']})"
    )
    return text
