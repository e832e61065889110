"""The settings that change how fast a step is and not what it computes, and which of their values can be tried.

    precision       those that this machine was found to compute in, unless their products are far slower
    micro-batch     the effective batch cut otherwise: micro_batch * accumulate stays
    threads         cores - 1, and powers of two below the cores
    workers         none, and powers of two up to the cores
    threads beside workers   the cores that those leave
    processes       several with a share of the cores each, instead of one: process_counts.py
    overlap         weight gradients beside input gradients

Processes come after threads and workers, which say what one process is worth. They come before overlap: that needs two
threads in a process, and a micro-batch whose gradients are not sent, so the number of processes decides whether there
is anything to try. This file imports no torch.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from ...recipes.config import Config
from . import process_counts

DIMENSIONS = ("precision", "micro-batch", "threads", "workers", "threads beside workers", "processes", "overlap")
CHANGES_MEMORY = ("precision", "micro-batch", "processes")  # by what estimates.py knows of
FAR_SLOWER = 0.5  # of the rate of the default's products: not worth a trial
_SMALLEST = 8  # times smaller than the default's a micro-batch may be

C = TypeVar("C", bound=Config)


class Settings(NamedTuple):
    """Under the names of the config's fields, workers and overlap_weight_grads but for their sections.

    `processes` is no field: a config trains the same in any number of them. threads and workers are of each.
    """

    threads: int | None
    micro_batch: int
    accumulate: int
    precision: str
    workers: int | Literal["auto"]
    overlap: bool
    processes: int = 1

    def applied(self, config: C) -> C:
        data = {} if getattr(config, "data", None) is None else {"data": {"workers": self.workers}}
        return config.replace(
            threads=self.threads, micro_batch=self.micro_batch, accumulate=self.accumulate, precision=self.precision,
            overlap_weight_grads=self.overlap, **data,
        )  # fmt: skip

    def fields(self) -> dict[str, Any]:
        """By the config's names, and processes."""
        names = {"workers": "data.workers", "overlap": "overlap_weight_grads"}
        return {names.get(name, name): value for name, value in self._asdict().items()}


def of(config: Config) -> Settings:
    workers = getattr(getattr(config, "data", None), "workers", 0)
    return Settings(
        config.threads, config.micro_batch, config.accumulate, config.precision, workers, config.overlap_weight_grads
    )


class Ground(NamedTuple):
    """What is known before the first trial: the facts of estimates.py."""

    cores: int
    threads: int  # that the default comes to
    precision: str  # that the default comes to
    precisions: Mapping[str, Mapping[str, Any]]
    micro_batch_matters: str | None
    regions: Sequence[int] = ()  # numbers of processes that keep each within a NUMA node or a socket
    can_cut: bool = True  # a micro-batch can be shared by several processes
    processes_matter: str | None = None

    def threads_of(self, settings: Settings) -> int:
        """Of each process."""
        own = self.threads if settings.processes == 1 else max(1, self.cores // settings.processes)
        return settings.threads or own

    def precision_of(self, settings: Settings) -> str:
        return self.precision if settings.precision == "auto" else settings.precision


def others(dimension: str, best: Settings, ground: Ground) -> tuple[list[Settings], dict[str, str]]:
    """What to try instead of `best`, the likeliest first; and what is not tried, with the reason."""
    if dimension == "precision":
        return _precisions(best, ground)
    if dimension == "micro-batch":
        if ground.micro_batch_matters:
            return [], {"other micro-batches": f"another training: {ground.micro_batch_matters}"}
        return [best._replace(micro_batch=m, accumulate=a) for m, a in splits(best.micro_batch, best.accumulate)], {}
    if dimension == "threads":
        counts = thread_counts(ground.cores, ground.threads_of(best))
        return [best._replace(threads=count) for count in counts], {}
    if dimension == "workers":
        counts = [0, *powers_of_two(ground.cores)]
        return [best._replace(workers=count) for count in counts if count != best.workers], {}
    if dimension == "threads beside workers":
        workers = best.workers if isinstance(best.workers, int) else 0
        rest = max(1, ground.cores - workers)
        return [best._replace(threads=rest)] if workers and rest < ground.threads_of(best) else [], {}
    if dimension == "processes":
        return process_counts.others(best, ground, powers_of_two(ground.cores))
    return _overlap(best, ground)


def label(dimension: str, settings: Settings, ground: Ground) -> str:
    """Its value there, for people."""
    if dimension == "precision":
        return f"auto ({ground.precision})" if settings.precision == "auto" else settings.precision
    if dimension == "micro-batch":
        return f"{settings.accumulate} x {settings.micro_batch}"
    if dimension.startswith("threads"):
        count = ground.threads_of(settings)
        return f"{count} thread{'s' if count > 1 else ''}" + " each" * (settings.processes > 1)
    if dimension == "workers":
        if settings.workers == "auto":
            return "workers auto"
        return f"{settings.workers or 'no'} worker{'s' if settings.workers != 1 else ''}"
    if dimension == "processes":
        return process_counts.named(settings.processes)
    return "overlap" if settings.overlap else "no overlap"


def words(settings: Settings, ground: Ground) -> str:
    """All of them in one line; that there is one process goes without saying."""
    several = ("processes",) if settings.processes > 1 else ()
    dimensions = (*several, "threads", "micro-batch", "precision", "workers", "overlap")
    return ", ".join(label(dimension, settings, ground) for dimension in dimensions)


def splits(micro_batch: int, accumulate: int) -> list[tuple[int, int]]:
    """Other (micro_batch, accumulate) with the same product, each about twice or half the one before; near ones first.

    Downwards as far as an eighth of the default, where steps are long since slower; upwards memory is the limit.
    """
    whole = micro_batch * accumulate
    divisors = [d for d in range(1, whole + 1) if whole % d == 0]
    up, down = [micro_batch], [micro_batch]
    while found := [d for d in divisors if d >= 2 * up[-1]]:
        up.append(found[0])
    while found := [d for d in divisors if 2 * d <= down[-1] and _SMALLEST * d >= micro_batch]:
        down.append(found[-1])
    near_first = [size for pair in _zip_longest(up[1:], down[1:]) for size in pair]
    return [(size, whole // size) for size in near_first]


def _zip_longest(one: list[int], other: list[int]) -> list[list[int]]:
    longest = max(len(one), len(other))
    return [[*one[i : i + 1], *other[i : i + 1]] for i in range(longest)]


def thread_counts(cores: int, now: int) -> list[int]:
    counts = {cores, cores - 1, *(power for power in powers_of_two(cores) if power < cores)} - {0, now}
    return sorted(counts, reverse=True)


def powers_of_two(most: int) -> list[int]:
    return [1 << i for i in range(most.bit_length())]


def _precisions(best: Settings, ground: Ground) -> tuple[list[Settings], dict[str, str]]:
    taken, left_out = [], {}
    own = ground.precision_of(best)
    rate = ground.precisions[own]["gflops"]
    for name, found in ground.precisions.items():
        if name == own:
            continue
        if found["trouble"]:
            left_out[name] = found["trouble"]
        elif found["gflops"] < FAR_SLOWER * rate:
            left_out[name] = f"its products reach {found['gflops']:.0f} GFLOP/s, those of {own} {rate:.0f}"
        else:
            taken.append(best._replace(precision=name))
    return taken, left_out


def _overlap(best: Settings, ground: Ground) -> tuple[list[Settings], dict[str, str]]:
    if ground.threads_of(best) == 1:
        has = "one is best" if best.processes == 1 else f"each of {best.processes} processes has one"
        return [], {"overlap": f"needs two threads, and {has}"}
    if best.processes > 1 and best.accumulate == math.gcd(best.accumulate, best.processes):  # one each
        return [], {"overlap": "gradients of the last micro-batch are sent meanwhile, and each process has only that"}
    return [best._replace(overlap=not best.overlap)], {}
