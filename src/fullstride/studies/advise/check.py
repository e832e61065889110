"""A short run, to hold the prediction against: of a recipe in a process of its own, of any model in a copy of it.

    {"milliseconds": median, lowest and highest of the turns, "turns", "steps": of a turn, "peak_bytes", "watts", ...}

A turn is about a second of steps; its value is the mean of a step. Data is made before the clock starts.
"""

import contextlib
import copy
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ... import preparation
from ...bench.compare.folder import Folder
from ...bench.compare.sides import MOST_BYTES
from ...bench.measure import spread_of
from ...bench.step import benchmark as step
from ...bench.step import stock as step_stock
from ...bench.step.cases import Case
from ...machine import energy, load
from ...recipes.config import Config, expect
from . import replay

FEWEST_TURNS, TURN, _MOST_STEPS = 3, 1.0, 50


def expect_carbon(grams: float | None) -> None:
    if grams is not None:
        expect(0 <= grams < math.inf, "carbon", "grams of CO2 a kWh, 0 or more", grams)


def of_recipe(config: Config, seconds: float) -> dict[str, Any]:
    """Ours alone, as `fullstride compare` runs it."""
    with tempfile.TemporaryDirectory(prefix="fullstride-advise-") as path, contextlib.ExitStack() as stack:
        folder = Folder(Path(path), config)
        folder.provide(step_stock.WARM_UP + 1)
        case = Case(config.recipe, config.accumulate, (config.precision,), recipe=path)
        side = step.start("fullstride", case.config(fullstride=config.precision), stack)

        def make_ready(count: int) -> None:
            done = len(side.losses)
            folder.forget(done)
            folder.provide(done + count)

        def take(count: int) -> list[float]:
            times: list[float] = side.run(count)["seconds"]
            return times

        first = take(1)[0]
        most = max(1, min(_MOST_STEPS, MOST_BYTES // max(1, folder.bytes_of_step)))
        found = _turns(take, first, most, seconds, make_ready)
        return found | {"peak_bytes": side.peaks[-1], "precision": side.facts["precision"]}


def of_model(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, loss: Callable[[nn.Module, Any], Any], batch: Any,
    config: Config, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """A copy of the model and its optimizer, prepared in this process. Its memory is not told from the process's."""
    twin, own = copy.deepcopy((model, optimizer))
    own = torch.optim.AdamW(twin.parameters(), lr=1e-4) if own is None else own
    options: Any = {
        "precision": config.precision, "clip": config.clip, "activations": config.activations,
        "threads": config.threads,
    }  # fmt: skip
    with replay.quiet(), torch.random.fork_rng(devices=[]):
        twin, own = preparation.prepare(twin.train(), own, **options)
        try:
            take = Steps(twin, own, loss, batch, config.accumulate)
            take(step_stock.WARM_UP)
            found = _turns(take, take(1)[0], _MOST_STEPS, seconds)
            return found | {"peak_bytes": None, "precision": preparation.explain(twin).precision}
        finally:
            preparation.restore(twin)


class Steps:
    def __init__(self, model: nn.Module, optimizer: Any, loss: Callable[..., Any], batch: Any, accumulate: int) -> None:
        self.model, self.optimizer, self.loss, self.batch = model, optimizer, loss, batch
        self.accumulate = accumulate

    def __call__(self, count: int) -> list[float]:
        return [self._once() for _ in range(count)]

    def _once(self) -> float:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        for _ in range(self.accumulate):
            (self.loss(self.model, self.batch) / self.accumulate).backward()
        self.optimizer.step()
        return time.perf_counter() - start


def _turns(
    take: Callable[[int], list[float]],
    first: float,
    most: int,
    seconds: float,
    make_ready: Callable[[int], object] = lambda count: None,
) -> dict[str, Any]:
    """take(n) takes n steps and says how long each took; first: one of them."""
    count = max(1, min(most, math.ceil(TURN / first), int(seconds / FEWEST_TURNS / first)))
    means: list[float] = []
    spent, joules, label = 0.0, 0.0, ""
    while len(means) < FEWEST_TURNS or spent + spent / len(means) <= seconds:
        make_ready(count)
        meter = energy.Meter()
        times = take(count)
        taken, label = meter.read(), meter.label
        joules += math.nan if taken is None else taken
        means.append(statistics.mean(times))
        spent += sum(times)
    return {
        "milliseconds": spread_of(1e3 * mean for mean in means),
        "turns": len(means),
        "steps": count,
        "watts": None if math.isnan(joules) else joules / spent,
        "energy": label,
        "load": round(load.load(), 1),
        "cores": os.cpu_count() or 1,  # of the whole machine, as the load is
    }
