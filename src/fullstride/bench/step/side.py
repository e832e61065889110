"""One side of `bench step` or `compare`: a process that builds its model once and trains it when told.

Run by its path, so that the process of stock PyTorch never imports Fullstride: `python side.py CONFIG`, with

    {"model", "accumulate", "fullstride": precision or null, "autocast": bool, "fused": bool, "compile": bool}

as JSON; with "recipe" it is a folder that says what to train (compare/folder.py). More, for single techniques:

    "options"   of prepare(), instead of the recipe's
    "imports"   true: Fullstride is imported, and nothing else is done with it
    "overlaps"  true: weight gradients are computed beside the rest of backward, whether that was measured to pay or not

It writes one line of facts when the model stands, then answers each line it reads with a line:

    {"steps": n}      -> {"seconds": [...], "losses": [...], "peaks": [...], "faults": of all these steps,
                          "frozen": [[step, the layers that are frozen after it], ...] where these changed}
    {"again": [first, n]}  -> the same on the data of n steps from `first` on, which it has seen before
    {"explain": 1}    -> {"lines": of explain() so far, "used": names of mechanisms and parts that did something, ...}
    {"evaluate": 1}   -> {"loss": the mean over the held-out data of the recipe's folder, "count": of its targets}
    {"save": path}    -> {"saved": path}, the weights in fp32 as safetensors
    {"profile": n}    -> {"milliseconds": of a step, "phases": [...], "ops": [[name, calls, share of the time], ...],
                          "by_phase": [[phase, name of an operation, share], ...]}

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
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import torch
from torch import Tensor, nn

_HERE = Path(__file__).resolve().parent
# What stock PyTorch must not have of ours, and what else decides how fast a process is.
_TELLING = re.compile(r"FULLSTRIDE|THP_MEM_ALLOC|GLIBC_TUNABLES|MALLOC_|LD_PRELOAD|OMP_|GOMP_|KMP_|MKL_|DNNL_|ONEDNN_")
_PHASE = "phase "  # before the names of the script's own parts there

Phase = Callable[[str], AbstractContextManager[Any]]
Data = tuple[list[tuple[Tensor, ...]], float]  # of a step: micro-batches and learning rate


def no_phase(name: str) -> AbstractContextManager[Any]:
    return contextlib.nullcontext()


class Training:
    """A model, its optimizer and its data, in the way of a plain training script."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.work = work = find_work(config)
        self.autocast: bool = config.get("autocast", False)
        self.num_steps = 0
        self.frozen: list[str] = []  # layers
        if work.threads:
            torch.set_num_threads(work.threads)
        model: nn.Module = work.build()
        self.num_parameters = sum(p.numel() for p in model.parameters())
        self.gflop: float | None = work.gflop(model)
        self.dropout = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
        self.freezer: Any = None
        self.clip: float | None = work.clip
        self.precision = "bf16" if self.autocast else "fp32"
        self.explanation: list[str] = []
        if config.get("fullstride"):
            optimizer = self.prepare(model, config)
        else:
            fused = True if config.get("fused") else None  # None is the default
            optimizer = work.optimizer(model, fused, compiled=config.get("compile", False))
            self.freezer = work.plain_freezer(model)
        if config.get("compile"):
            model = torch.compile(model)  # type: ignore[assignment]
        self.model, self.optimizer = model.train(), optimizer
        self.plain: nn.Module = getattr(model, "_orig_mod", model)  # to evaluate: nothing is compiled for that alone

    def prepare(self, model: nn.Module, config: dict[str, Any]) -> Any:
        """By Fullstride, in place. The optimizer; stock PyTorch's where ours is left out."""
        import fullstride

        options = {"precision": config["fullstride"], "clip": self.clip, "threads": self.work.threads}
        options |= self.work.our_options() | config.get("options", {})
        if "optimizer" in options.get("without", ()):
            fullstride.prepare(model, **options | {"clip": None, "state_precision": None})
            optimizer = self.work.optimizer(model, fused=None)
        else:
            _, optimizer = fullstride.prepare(model, self.work.our_optimizer(model), **options)
            self.clip = None  # the optimizer does
        if config.get("overlaps"):
            from fullstride.ops._overlap import overlap_weight_grads

            overlap_weight_grads(True)
        self.freezer = self.work.our_freezer(model)
        explanation = fullstride.explain(model)
        self.precision, self.explanation = explanation.precision, str(explanation).splitlines()
        return optimizer

    def explain(self, _: int) -> dict[str, Any]:
        """What Fullstride has done so far; nothing on the side of stock PyTorch."""
        if "fullstride.preparation" not in sys.modules:
            return {"lines": [], "used": [], "functions": []}
        import fullstride
        from fullstride.rewriting.used import functions_used, used

        found = fullstride.explain(self.plain)
        return {
            "lines": str(found).splitlines(),
            "used": sorted(used(self.plain, found.outcomes, found.setting)),
            "functions": sorted(functions_used(found.setting.caught)),  # parts whose functions the model calls
        }

    def data(self, steps: int) -> list[Data]:
        """Of the next steps."""
        first, self.num_steps = self.num_steps, self.num_steps + steps
        return [self.work.step(number) for number in range(first, self.num_steps)]

    def step(self, batches: list[tuple[Tensor, ...]], lr: float, phase: Phase = no_phase) -> float:
        total = 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with phase("zero_grad"):
            self.optimizer.zero_grad()
        for batch in batches:
            with phase("forward"), torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                loss = self.work.loss(self.model, batch) / len(batches)
            with phase("backward"):
                loss.backward()
            total += loss.item()
        if self.freezer is not None:
            with phase("freezer"):
                self.freezer.step(total)
        if self.clip is not None:
            with phase("clip"):
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        with phase("optimizer"):
            self.optimizer.step()
        return total

    def run(self, steps: int) -> dict[str, Any]:
        return self.take(self.data(steps))  # before the clock starts

    def again(self, which: list[int]) -> dict[str, Any]:
        first, steps = which
        self.num_steps += steps
        return self.take([self.work.step(number) for number in range(first, first + steps)])

    def take(self, data: list[Data]) -> dict[str, Any]:
        seconds, losses, peaks, frozen, faults = [], [], [], [], page_faults()
        for number, (batches, lr) in enumerate(data, self.num_steps - len(data) + 1):
            start = time.perf_counter()
            losses.append(self.step(batches, lr))
            seconds.append(time.perf_counter() - start)
            peaks.append(peak_bytes())
            if self.freezer is not None and self.frozen != (now := self.freezer.report().frozen_layers):
                self.frozen = now
                frozen.append([number, now])
        faults = page_faults() - faults
        return {"seconds": seconds, "losses": losses, "peaks": peaks, "faults": faults, "frozen": frozen}

    def evaluate(self, _: int) -> dict[str, Any]:
        total, count = 0.0, 0
        self.plain.eval()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            for batch, num_targets in self.work.valid():
                total += num_targets * self.work.loss(self.plain, batch).item()
                count += num_targets
        self.plain.train()
        return {"loss": total / count, "count": count}

    def save(self, path: str) -> dict[str, Any]:
        from safetensors.torch import save_file

        # Copies, because tied weights are one tensor under several names, which safetensors refuses.
        save_file({name: x.detach().clone().contiguous() for name, x in self.plain.state_dict().items()}, path)
        return {"saved": path}

    def profile(self, steps: int) -> dict[str, Any]:
        """Where the time of a step goes: by part of the script, and by operation without those inside it."""
        data = self.data(steps)

        def phase(name: str) -> AbstractContextManager[Any]:
            return torch.profiler.record_function(_PHASE + name)

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for batches, lr in data:
                self.step(batches, lr, phase)
        events = profiler.key_averages()
        phases = {e.key.removeprefix(_PHASE): e.cpu_time_total for e in events if e.key.startswith(_PHASE)}
        whole = sum(phases.values())
        ops = sorted(events, key=lambda e: e.self_cpu_time_total, reverse=True)
        return {
            "milliseconds": whole / steps / 1e3,
            "phases": [[name, microseconds / whole] for name, microseconds in phases.items()],
            "ops": [[_op_name(e.key), e.count / steps, e.self_cpu_time_total / whole] for e in ops],
            "by_phase": [[*names, time / whole] for names, time in _by_phase(profiler.events()).items()],
        }

    def facts(self) -> dict[str, Any]:
        return {
            "parameters": self.num_parameters,
            "gflop": self.gflop,  # of a step
            "unit": self.work.unit,
            "units": self.work.num_units,  # of a step
            "dropout": self.dropout,
            "precision": self.precision,
            "explanation": self.explanation,  # of what prepare() did
            "threads": torch.get_num_threads(),
            "environment": {name: value for name, value in os.environ.items() if _TELLING.match(name)},
            "fullstride_loaded": "fullstride" in sys.modules,
        }


def _by_phase(events: Any) -> dict[tuple[str, str], float]:
    """Microseconds of each operation in each part of the script, without those inside it."""
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for event in events:
        around = event
        while around is not None and not around.key.startswith(_PHASE):
            around = around.cpu_parent
        if around is not None:
            sums[around.key.removeprefix(_PHASE), _op_name(event.key)] += event.self_cpu_time_total
    return sums


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


def find_work(config: dict[str, Any]) -> Any:
    """What is to be trained: a model of models.py, or what `fullstride compare` put into a folder."""
    if "recipe" not in config:
        return load(_HERE / "models.py").Work(config["model"], config["accumulate"])
    folder = Path(config["recipe"])
    facts = json.loads((folder / "recipe.json").read_text())
    compare = _HERE.parent / "compare"
    plain = [load(compare / f"{name}.py") for name in ("plain_optimizers", "plain_freezing")]
    return load(compare / "work.py").Work(folder, facts, load(Path(facts["model_file"])), *plain)


def load(path: Path) -> ModuleType:
    """The module in that file, without the package around it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
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
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != _HERE]
    with answers() as out:
        try:
            if config.get("fullstride") or config.get("imports"):
                import fullstride  # noqa: F401  where a script has its imports: before anything is allocated
            training = Training(config)
            print(json.dumps(training.facts()), file=out)
            for line in sys.stdin:
                request = json.loads(line)
                [(what, argument)] = request.items()
                known: dict[str, Callable[[Any], dict[str, Any]]] = {
                    "steps": training.run, "again": training.again, "explain": training.explain,
                    "evaluate": training.evaluate, "save": training.save, "profile": training.profile,
                }  # fmt: skip
                print(json.dumps(known[what](argument)), file=out)
        except Exception as error:
            text = str(error).strip().splitlines() or ["no message"]
            print(json.dumps({"error": f"{type(error).__name__}: {text[0]}"}), file=out)
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
