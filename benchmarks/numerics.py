"""The error measurements of docs/numerics.md, as suite numerics of benchmarks/results and as pictures in docs/images.

    python -m benchmarks.numerics                        takes the suite anew and draws
    python -m benchmarks.numerics weights --json FILE    one part
    python -m benchmarks.numerics draw                   the pictures anew; the only part that needs matplotlib

Errors are taken against the same computation in fp64. Everything is a function of fixed seeds and runs in one thread,
so it can be repeated; the text of the training run is the source of Python's standard library, which differs a little
between versions.
"""

import argparse
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fullstride import optim
from fullstride.bench.conditions import conditions
from fullstride.ops import _formats as formats
from fullstride.ops.convert import merge, split

from . import result_files, take
from .numerics_training import FORMATS, SEEDS, curve

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
Series = dict[str, list[float]]


def gradient(step: int, like: Tensor, drift: float, spread: float = 0.0) -> Tensor:
    """Noise of deviation 1 around a mean of size `drift` that each element keeps; scales that differ between elements
    by a log-normal of deviation `spread`."""
    fixed = torch.Generator().manual_seed(1)
    mean = drift * torch.randn(like.shape, generator=fixed)
    scale = torch.exp(spread * torch.randn(like.shape, generator=fixed))
    noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(1000 + step))
    return ((mean + noise) * scale).float()


class Exact:
    """AdamW in fp64, without weight decay. The weight may be rounded after each step."""

    def __init__(self, weight: Tensor, lr: float, rounding: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        self.weight, self.lr, self.rounding, self.t = weight.double(), lr, rounding, 0
        self.m, self.v = torch.zeros_like(self.weight), torch.zeros_like(self.weight)

    def step(self, grad: Tensor) -> None:
        self.t += 1
        self.m = BETA1 * self.m + (1 - BETA1) * grad.double()
        self.v = BETA2 * self.v + (1 - BETA2) * grad.double() ** 2
        self.weight = self.rounding(self.weight - self.lr * self.update()).double()

    def update(self) -> Tensor:
        return self.m / (1 - BETA1**self.t) / ((self.v / (1 - BETA2**self.t)).sqrt() + EPS)


def weights(steps: int = 2000, numel: int = 1 << 14) -> dict[str, Any]:
    """The weight that forward uses, over the steps: its distance from fp64, and its bias toward zero."""
    lr, start = 1e-4, 0.02 * torch.randn(numel, generator=torch.Generator().manual_seed(0))
    exact = Exact(start, lr)
    nearest = Exact(start.bfloat16(), lr, rounding=lambda x: x.bfloat16())
    p32, hi, stochastic = (torch.nn.Parameter(w) for w in (start.clone(), split(start)[0], start.bfloat16()))
    lo = split(start)[1]
    run32, run_split, run_stochastic = (optim.AdamW([p], lr=lr, weight_decay=0.0) for p in (p32, hi, stochastic))
    run_split.use_split({hi: lo})
    seen: dict[str, Callable[[], Tensor]] = {
        "fp32": lambda: p32.detach(),
        "split, nearest": lambda: hi.detach(),
        "split, truncated": lambda: (p32.detach().view(torch.int32) & -65536).view(torch.float32),
        "bf16, nearest": lambda: nearest.weight,
        "bf16, stochastic": lambda: stochastic.detach(),
    }
    at: list[int] = []
    errors: Series = {name: [] for name in seen}
    biases: Series = {name: [] for name in seen}
    different_bits = 0
    for step in range(1, steps + 1):
        grad = gradient(step, start, drift=0.1)
        for run in (exact, nearest):
            run.step(grad)
        for p, optimizer in ((p32, run32), (hi, run_split), (stochastic, run_stochastic)):
            p.grad = grad  # fp32 for bf16 parameters too, as main gradients are
            optimizer.step()
        different_bits += int((merge(hi.detach(), lo).view(torch.int32) != p32.detach().view(torch.int32)).sum())
        if step % 20 == 0 or step == 1:
            at.append(step)
            for name, read in seen.items():
                w = read().double()
                errors[name].append(((w - exact.weight).norm() / exact.weight.norm()).item())
                biases[name].append(((w.abs() - exact.weight.abs()).sum() / exact.weight.abs().sum()).item())
    return {"steps": at, "error": errors, "bias": biases, "split_weights_unlike_fp32": different_bits}


def second_moment(steps: int = 6000, change: int = 1000, numel: int = 4096) -> dict[str, Any]:
    """Gradients become ten times smaller at `change`. The mean of v, divided by that of v in fp64."""
    runs: dict[str, tuple[torch.nn.Parameter, torch.optim.Optimizer]] = {}
    for name, precision in (("fp32", "fp32"), ("bf16, stochastic", "bf16"), ("8-bit, stochastic", "8bit")):
        p = torch.nn.Parameter(torch.zeros(numel))
        runs[name] = (p, optim.AdamW([p], lr=0.0, state_precision=precision))
    p = torch.nn.Parameter(torch.zeros(numel, dtype=torch.bfloat16))
    runs["bf16, nearest"] = (p, torch.optim.AdamW([p], lr=0.0))
    exact = Exact(torch.zeros(numel), lr=0.0)
    at: list[int] = []
    ratio: Series = {name: [] for name in runs}
    for step in range(1, steps + 1):
        grad = gradient(step, exact.weight, drift=0.0) * (1.0 if step <= change else 0.1)
        exact.step(grad)
        for name, (p, optimizer) in runs.items():
            p.grad = grad.to(p.dtype)
            optimizer.step()
            if step % 50 == 0:
                ratio[name].append((v_of(optimizer.state[p]).double().mean() / exact.v.mean()).item())
        if step % 50 == 0:
            at.append(step)
    return {"steps": at, "ratio": ratio, "change": change}


def v_of(state: dict[str, Any]) -> Tensor:
    if "exp_avg_sq_scale" in state:
        return formats.decode_root(state["exp_avg_sq"], state["exp_avg_sq_scale"]) ** 2
    return state["exp_avg_sq"].float()


def m_of(state: dict[str, Any]) -> Tensor:
    if "exp_avg_scale" in state:
        return formats.decode_m(state["exp_avg"], state["exp_avg_scale"])
    return state["exp_avg"].float()


def states(steps: int = 600, numel: int = 1 << 14) -> dict[str, Any]:
    """What one rounding costs, by the size of the value in its block; and the error of Adam's update over the steps."""
    sizes: list[float] = []
    codes: Series = {"m, 8 bits": [], "sqrt(v), 8 bits": [], "bf16": []}
    for exponent in torch.arange(-22, -0.9, 0.5).tolist():  # an octave each, evenly in its logarithm
        x = 2 ** (exponent + torch.rand(200, formats.BLOCK, generator=torch.Generator().manual_seed(0)))
        x[:, 0] = 1  # the largest of the block
        random = formats.random_bits(0, 1, 0, x.numel())
        decoded = {
            "m, 8 bits": formats.decode_m(*formats.encode_m(x, random)),
            "sqrt(v), 8 bits": formats.decode_root(*formats.encode_root(x, random)),
            "bf16": formats.round_to_bf16(x, formats.noise_of_m(random, 16).view(x.shape)).float(),
        }
        sizes.append(2 ** (exponent + 0.5))
        for name, y in decoded.items():
            codes[name].append(((y - x) / x)[:, 1:].double().square().mean().sqrt().item())

    runs, exact = {}, Exact(torch.zeros(numel), lr=0.0)
    for name in ("fp32", "bf16", "8bit"):
        p = torch.nn.Parameter(torch.zeros(numel))
        runs[name] = (p, optim.AdamW([p], lr=0.0, state_precision=name))
    at: list[int] = []
    updates: Series = {name: [] for name in runs}
    along: Series = {name: [] for name in runs}  # the part in the exact direction: 1 where errors cancel out
    for step in range(1, steps + 1):
        grad = gradient(step, exact.weight, drift=0.1, spread=2.0)
        exact.step(grad)
        for name, (p, optimizer) in runs.items():
            p.grad = grad
            optimizer.step()
            if step % 5 == 0 or step == 1:
                state = optimizer.state[p]
                root = (v_of(state).double() / (1 - BETA2**step)).sqrt()
                update = m_of(state).double() / (1 - BETA1**step) / (root + EPS)
                wanted = exact.update()
                updates[name].append(((update - wanted).norm() / wanted.norm()).item())
                along[name].append((update.dot(wanted) / wanted.dot(wanted)).item())
        if step % 5 == 0 or step == 1:
            at.append(step)
    return {"sizes": sizes, "codes": codes, "steps": at, "updates": updates, "along": along}


def accumulation(counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256), width: int = 128) -> dict[str, Any]:
    """The gradient of a bf16 linear layer after n micro-batches, against fp64 of the same inputs."""
    weight = torch.randn(width, width, generator=torch.Generator().manual_seed(0)).bfloat16()
    mean = torch.randn(width, width, generator=torch.Generator().manual_seed(1)) / math.sqrt(width)
    errors: Series = {"bf16, as torch sums": [], "fp32 main gradients": []}
    stock, ours = torch.nn.Parameter(weight.clone()), torch.nn.Parameter(weight.clone())
    optim.keep_main_gradients([ours])
    exact = torch.zeros(width, width, dtype=torch.float64)
    for i in range(counts[-1]):
        generator = torch.Generator().manual_seed(100 + i)
        x = torch.randn(64, width, generator=generator).bfloat16()
        dy = (0.1 * x.float() @ mean + torch.randn(64, width, generator=generator)).bfloat16()
        for p in (stock, ours):
            F.linear(x, p).backward(dy)
        exact += dy.double().T @ x.double()
        if i + 1 in counts:
            for name, p in zip(errors, (stock, ours), strict=True):
                assert p.grad is not None
                errors[name].append(((p.grad.double() - exact).norm() / exact.norm()).item())
    return {"counts": list(counts), "error": errors}


def training(seed: int) -> dict[str, Any]:
    """The same small language model in every format: its training losses and its loss on held-out text at the end."""
    losses: Series = {}
    held_out: dict[str, float] = {}
    for name in FORMATS:
        losses[name], held_out[name] = curve(name, seed)
        print(f"  {name:<32} held-out {held_out[name]:.4f}", flush=True)
    return {"losses": losses, "held_out": held_out}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "weights": weights,
    "second_moment": second_moment,
    "states": states,
    "accumulation": accumulation,
    **{f"training_{seed}": partial(training, seed) for seed in SEEDS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=[*PARTS, "draw"], help="all by default")
    parser.add_argument("--json", type=Path, help="where the part is written")
    options = parser.parse_args()
    if options.part is None:
        take.main(["numerics"])
    elif options.part != "draw":
        torch.set_num_threads(1)
        found = {"conditions": conditions(), "name": options.part, **rounded(PARTS[options.part]())}
        if options.json:
            options.json.write_text(json.dumps(found) + "\n")
        return
    from .numerics_plots import draw

    files = [file for file in result_files.load_all() if file.suite == "numerics"]
    if not files:
        raise SystemExit("numerics: expected a file of results, got none; run python -m benchmarks.numerics first")
    newest = max(files, key=lambda file: max(str(part["conditions"]["date"]) for part in file.parts))
    draw({part["name"]: part for part in newest.parts}, result_files.ROOT / "docs" / "images")


def rounded(value: Any) -> Any:
    """Five digits are more than a picture shows."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
