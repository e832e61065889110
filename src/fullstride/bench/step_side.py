"""One side of `fullstride bench step`: a process that builds its model once and trains it when told.

Run by its path, so that the process of stock PyTorch never imports Fullstride: `python step_side.py CONFIG`, with

    {"model", "accumulate", "fullstride": precision or null, "autocast": bool, "fused": bool, "compile": bool}

as JSON. It writes one line of facts when the model stands, then answers each line it reads with a line:

    {"steps": n}      -> {"seconds": [...], "losses": [...], "faults": of all these steps, "peak_bytes"}
    {"profile": n}    -> {"milliseconds": of a step, "phases": [...], "ops": [[name, calls, share of the time], ...]}

An error is a line {"error": text} and the end of the process.
"""

import contextlib
import importlib.util
import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import torch
from torch import Tensor, nn

SEED = 0
# What stock PyTorch must not have of ours, and what else decides how fast a process is.
_TELLING = re.compile(r"FULLSTRIDE|THP_MEM_ALLOC|GLIBC_TUNABLES|MALLOC_|LD_PRELOAD|OMP_|GOMP_|KMP_|MKL_|DNNL_|ONEDNN_")
_TOP_OPS = 15  # of a profile
_PHASE = "phase "  # before the names of the script's own parts there

Phase = Callable[[str], AbstractContextManager[Any]]


def no_phase(name: str) -> AbstractContextManager[Any]:
    return contextlib.nullcontext()


class Training:
    """A model, its optimizer and its data, in the way of a plain training script."""

    def __init__(self, config: dict[str, Any]) -> None:
        models = load("step_models")
        self.workload = models.WORKLOADS[config["model"]]
        self.accumulate: int = config["accumulate"]
        self.autocast: bool = config.get("autocast", False)
        self.num_steps = 0
        torch.manual_seed(SEED)
        model: nn.Module = self.workload.build()
        self.num_parameters = sum(p.numel() for p in model.parameters())
        self.gflop = self.accumulate * models.gflop(self.workload, model)
        fused = True if config.get("fused") else None  # None is the default
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.workload.lr, fused=fused)
        self.clips = True
        self.precision = "bf16" if self.autocast else "fp32"
        self.explanation: list[str] = []
        if config.get("fullstride"):
            import fullstride

            model, optimizer = fullstride.prepare(model, optimizer, precision=config["fullstride"], clip=1.0)
            self.clips = False  # the optimizer does
            explanation = fullstride.explain(model)
            self.precision, self.explanation = explanation.precision, str(explanation).splitlines()
        elif config.get("compile"):
            model = torch.compile(model)  # type: ignore[assignment]
        self.model, self.optimizer = model.train(), optimizer

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """The micro-batches of the next step: a function of the seed and its number."""
        generator = torch.Generator().manual_seed(1_000_003 * SEED + self.num_steps + 1)
        self.num_steps += 1
        return [self.workload.batch(generator) for _ in range(self.accumulate)]

    def step(self, batches: list[tuple[Tensor, Tensor]], phase: Phase = no_phase) -> float:
        total = 0.0
        with phase("zero_grad"):
            self.optimizer.zero_grad()
        for inputs, targets in batches:
            with phase("forward"), torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                loss = self.workload.loss(self.model, inputs, targets) / len(batches)
            with phase("backward"):
                loss.backward()
            total += loss.item()
        if self.clips:
            with phase("clip"):
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        with phase("optimizer"):
            self.optimizer.step()
        return total

    def run(self, steps: int) -> dict[str, Any]:
        data = [self.batches() for _ in range(steps)]  # made before the clock starts
        seconds, losses, faults = [], [], page_faults()
        for batches in data:
            start = time.perf_counter()
            losses.append(self.step(batches))
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds, "losses": losses, "faults": page_faults() - faults, "peak_bytes": peak_bytes()}

    def profile(self, steps: int) -> dict[str, Any]:
        """Where the time of a step goes: by part of the script, and by operation without those inside it."""
        data = [self.batches() for _ in range(steps)]

        def phase(name: str) -> AbstractContextManager[Any]:
            return torch.profiler.record_function(_PHASE + name)

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for batches in data:
                self.step(batches, phase)
        events = profiler.key_averages()
        phases = {e.key.removeprefix(_PHASE): e.cpu_time_total for e in events if e.key.startswith(_PHASE)}
        whole = sum(phases.values())
        ops = sorted(events, key=lambda e: e.self_cpu_time_total, reverse=True)[:_TOP_OPS]
        return {
            "milliseconds": whole / steps / 1e3,
            "phases": [[name, microseconds / whole] for name, microseconds in phases.items()],
            "ops": [[_op_name(e.key), e.count / steps, e.self_cpu_time_total / whole] for e in ops],
        }

    def facts(self) -> dict[str, Any]:
        return {
            "parameters": self.num_parameters,
            "gflop": self.gflop,  # of a step
            "unit": self.workload.unit,
            "units": self.workload.num_units * self.accumulate,  # of a step
            "precision": self.precision,
            "explanation": self.explanation,  # of what prepare() did
            "threads": torch.get_num_threads(),
            "environment": {name: value for name, value in os.environ.items() if _TELLING.match(name)},
            "fullstride_loaded": "fullstride" in sys.modules,
        }


def _op_name(key: str) -> str:
    return f"{key.removeprefix(_PHASE)}, between operations" if key.startswith(_PHASE) else key


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def peak_bytes() -> int:
    """The most this process has ever held. ru_maxrss would count the parent, from before this program was started."""
    with contextlib.suppress(OSError):
        match = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def load(name: str) -> ModuleType:
    """The module of that name beside this file, without the package around it."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def answers() -> Iterator[TextIO]:
    """The standard output for answers alone: whatever else is printed goes to the standard error."""
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)
        yield out


def main() -> int:
    config = json.loads(sys.argv[1])
    # Python puts the folder of a program first; torch must not find our modules there under names like "table".
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]
    with answers() as out:
        try:
            if config.get("fullstride"):
                import fullstride  # noqa: F401  where a script has its imports: before anything is allocated
            training = Training(config)
            print(json.dumps(training.facts()), file=out)
            for line in sys.stdin:
                request = json.loads(line)
                do, steps = (training.profile, "profile") if "profile" in request else (training.run, "steps")
                print(json.dumps(do(request[steps])), file=out)
        except Exception as error:
            text = str(error).strip().splitlines() or ["no message"]
            print(json.dumps({"error": f"{type(error).__name__}: {text[0]}"}), file=out)
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
