"""Where a training step of recipe fastspeech2 goes, part by part, and what 200 epochs would take.

    python -m benchmarks.fastspeech2_profile [--rounds 5] [--steps 3] [--json FILE]

16 sentences of 40 phonemes and 260 frames, some of it padding, made from a seed: no corpus is needed. Stock PyTorch as
it comes, at its best (fused Adam, and autocast to bf16 where `auto` is bf16), and ours, each in its own process
(fastspeech2_side.py), in turns; a value is the median of a turn's steps. Operations are counted by
fullstride.counting. Peaks are those of processes that do nothing but train at that batch. The estimate counts training
steps of 16 x 2 sentences and nothing else: no evaluation, no checkpoints, and data that is there in time.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fullstride.bench import conditions
from fullstride.bench.step import models as step_models
from fullstride.bench.step.cases import STOCK_BEST, STOCK_DEFAULT, Case
from fullstride.bench.step.process import Side, SideFailed, our_environment, rest, stock_environment
from fullstride.cli.arguments import positive
from fullstride.counting import flops_of

from . import tables
from .fastspeech2_side import MODULES, PARTS, REGULATOR

OURS = "fullstride auto"
_HERE = Path(__file__).resolve().parent
_SIDE = Path(step_models.__file__).with_name("side.py")
_MEMORY_STEPS = 3  # the second has the optimizer's state beside its activations, the third shows that it was all
_CORPUS_FRAMES = 24 * 3600 * 22050 / 256  # 24 hours, 86.13 frames a second
_EPOCHS, _ACCUMULATE = 200, 2


class Process:
    """One of fastspeech2_side.py."""

    def __init__(self, name: str, settings: Mapping[str, Any], model: str) -> None:
        self.name, self.settings = name, dict(settings)
        config = {"model": model, "accumulate": 1, "side": str(_SIDE), **settings}
        self._process = subprocess.Popen(
            [sys.executable, str(_HERE / "fastspeech2_side.py"), json.dumps(config)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=our_environment() if settings.get("fullstride") else stock_environment(),
        )  # fmt: skip
        try:
            self.facts: dict[str, Any] = self._answer()
        except BaseException:
            self.close()
            raise

    def run(self, steps: int) -> list[dict[str, dict[str, float]]]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"steps": steps}) + "\n")
        self._process.stdin.flush()
        answer: list[dict[str, dict[str, float]]] = self._answer()
        rest(self._process.pid)
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SideFailed(f"{self.name}: its process ended, exit code {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()


def profile(model: str, rounds: int, steps: int, peaks_of: Mapping[str, tuple[str, int]]) -> list[dict[str, Any]]:
    """Every side. peaks_of: how a batch is called -> its workload and the micro-batches of a step."""
    with contextlib.ExitStack() as stack:

        def start(name: str, **settings: Any) -> Process:
            process = Process(name, settings, model)
            stack.callback(process.close)
            return process

        ours = start(OURS, fullstride="auto")
        autocast = ours.facts["precision"] == "bf16"
        best = f"{STOCK_BEST} ({'autocast bf16 + ' * autocast}fused)"
        sides = [ours, start(STOCK_DEFAULT), start(best, autocast=autocast, fused=True)]
        turns: dict[str, list[dict[str, dict[str, float]]]] = {side.name: [] for side in sides}
        for _ in range(rounds):
            for side in sides:
                turns[side.name].append(median_step(side.run(steps)))
    # When the others are gone: peaks are no matter of time, but the memory of all at once could be one of swapping.
    return [as_side(side, turns[side.name], peaks(side.settings, peaks_of)) for side in sides]


def median_step(steps: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """{"phases", "forward", "backward"}: {name: milliseconds}."""
    names = {"phases": ("forward", "backward", "optimizer"), "forward": PARTS, "backward": PARTS}
    return {
        kind: {name: 1e3 * statistics.median(step[kind].get(name, 0.0) for step in steps) for name in own}
        for kind, own in names.items()
    }


def as_side(side: Process, turns: list[dict[str, dict[str, float]]], peaks: dict[str, Any]) -> dict[str, Any]:
    facts = side.facts
    micro, optimizer = (
        [sum(turn["phases"][name] for name in names) / 1e3 for turn in turns]
        for names in (("forward", "backward"), ("optimizer",))
    )
    steps = _EPOCHS * _CORPUS_FRAMES / (_ACCUMULATE * facts["units"])
    both = list(zip(micro, optimizer, strict=True))
    return {
        "name": side.name, "precision": facts["precision"], "parameters": facts["parameters"],
        "phases_ms": {name: [turn["phases"][name] for turn in turns] for name in turns[0]["phases"]},
        "forward_ms": {part: [turn["forward"][part] for turn in turns] for part in PARTS},
        "backward_ms": {part: [turn["backward"][part] for turn in turns] for part in PARTS},
        "units_per_second": [facts["units"] / (a + b) for a, b in both],
        "memory": facts["memory"], "peaks": peaks,
        "hours": [steps * (_ACCUMULATE * a + b) / 3600 for a, b in both],
    }  # fmt: skip


def peaks(settings: Mapping[str, Any], peaks_of: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    found = {}
    for title, (model, accumulate) in peaks_of.items():
        with contextlib.closing(Side(title, Case(model, accumulate).config(**settings))) as side:
            side.run(_MEMORY_STEPS)
            found[title] = {"peak_bytes": side.peaks[-1]}
    return found


class _Regulator(nn.Module):
    def forward(self, *inputs: Any) -> Any:
        return step_models.model_file("fastspeech2").repeat(*inputs)


def count(workload: step_models.Workload) -> dict[str, dict[str, float]]:
    """GFLOP of each part, forward and backward, of one micro-batch."""
    model, file = workload.build(), step_models.model_file("fastspeech2")
    calls: list[tuple[str, nn.Module, tuple[Any, ...]]] = []

    def keep(part: str, module: nn.Module) -> Callable[..., None]:
        return lambda _, inputs: calls.append((part, module, inputs))

    for name, part in MODULES.items():
        model.get_submodule(name).register_forward_pre_hook(keep(part, model.get_submodule(name)))
    original = file.repeat

    def regulated(*inputs: Any) -> Any:
        calls.append((REGULATOR, _Regulator(), inputs))
        return original(*inputs)

    file.repeat = regulated  # type: ignore[attr-defined]
    try:
        workload.loss(model, *workload.batch(torch.Generator().manual_seed(0)))
    finally:
        file.repeat = original  # type: ignore[attr-defined]
    found = {part: {"forward": 0.0, "backward": 0.0} for part in PARTS}
    for part, module, inputs in calls:
        counted = flops_of(module, lambda twin, batch: twin(*batch), tuple(map(_leaf, inputs)))
        found[part]["forward"] += counted.forward / 1e9
        found[part]["backward"] += counted.backward / 1e9
    return found


def _leaf(value: Any) -> Any:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def main() -> None:
    parser = argparse.ArgumentParser(description="A training step of recipe fastspeech2, part by part.")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--steps", type=positive, default=3, help="of each side in a round")
    parser.add_argument("--tiny", action="store_true", help="a model of a few weights, to try this program")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model, larger = ("tiny-speech", "tiny-speech") if options.tiny else ("fastspeech2", "fastspeech2 32")
    peaks_of = {"16": (model, 1), "32": (larger, 1), "16 x 2": (model, 2)}
    content = {
        "conditions": conditions.conditions() | {"heap": "kept by Fullstride alone"}, "model": model,
        "rounds": options.rounds, "steps": options.steps, "gflop": count(step_models.WORKLOADS[model]),
        "sides": profile(model, options.rounds, options.steps, peaks_of),
    }  # fmt: skip
    print("\n".join(tables.speech_profile_of(content)))
    if options.json:
        options.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
