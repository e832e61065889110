"""Anybody's batches, one after the other: of a torch DataLoader, a list, a generator.

Before every batch torch's, Python's and numpy's random numbers are seeded by (seed, number of the batch), and a loader
or sampler that has a generator of its own or a set_epoch() is told the epoch. So the order of the samples and what
is drawn for them are functions of (seed, epoch, number), as far as the loader draws from there. After a stop

    a DataLoader of a data set, no workers   goes on at the very sample: only the order is drawn again
    another one, a list, any iterable        is gone over again from the start of the epoch, its batches thrown away
    a generator, which begins only once      is gone over again from its beginning

and whether the last batch before the stop came again as it was is checked by its checksum, and said.
"""

import contextlib
import itertools
import logging
import signal
import threading
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from .loader import DataEnded, WorkerDied
from .order import seed_all, seed_of
from .sharing import Share

logger = logging.getLogger(__name__)

_CHECKED = 1 << 16  # bytes of each tensor that the checksum reads: all of a large batch would take as long as a copy


class AnyLoader:
    """next() gives batch number `position`. saved: what state() said before a stop."""

    def __init__(
        self, source: Iterable[Any], seed: int = 0, position: int = 0, saved: dict[str, Any] | None = None
    ) -> None:
        self._source, self._seed = source, seed
        self.position = 0
        self._starts = [0]  # the number of the first batch of each epoch
        self._iterator: Iterator[Any] | None = None
        self._checksum: int | None = None  # of the last batch
        self._deaths = _Deaths()
        if position:
            try:
                self._go_to(position, saved or {})
            except BaseException:  # nobody has this object, to close it
                self.close()
                raise

    @property
    def begins_once(self) -> bool:
        return begins_once(self._source)

    def next(self) -> Any:
        batch = self._draw()
        self._checksum = checksum(batch)
        self.position += 1
        return batch

    def state(self) -> dict[str, Any]:
        return {"position": self.position, "starts": list(self._starts), "checksum": self._checksum}

    def observe(self, waited: float, computed: float) -> None:
        """How many workers there are is the loader's."""

    @property
    def choice(self) -> str:
        return f"data: {kind(self._source)}; after a stop {_EXACTNESS[_way(self._source)]}"

    def close(self) -> None:
        self._iterator = None  # which ends the workers of a DataLoader
        self._deaths.close()

    # ---- one batch ---------------------------------------------------------------------------------------------------

    def _draw(self) -> Any:
        if self._iterator is None:
            self._begin()
        assert self._iterator is not None
        self._seed_all()
        try:
            with self._deaths.raised():
                return next(self._iterator)
        except StopIteration:
            pass
        except (RuntimeError, ConnectionError, EOFError) as error:
            raise self._of_worker(error) from None
        if self.begins_once:
            raise DataEnded
        if self.position == self._starts[-1]:
            raise ValueError("train_loader: expected at least one batch an epoch, got none")
        self._starts.append(self.position)
        self._begin()
        return self._draw()

    def _begin(self) -> None:
        """The epoch in which the next batch is its first."""
        seed = self._seed_all()
        source, epoch = self._source, len(self._starts) - 1
        for part in _parts(source):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)
        seed_generators(source, seed)
        self._iterator = iter(source)
        if getattr(source, "num_workers", 0):
            self._deaths.wait()

    def _seed_all(self) -> int:
        return seed_all(seed_of(self._seed, self.position))

    def _of_worker(self, error: Exception) -> Exception:
        """torch says it itself, unless a tensor was under way: then it is the connection that broke."""
        if str(error).startswith("DataLoader worker"):
            return WorkerDied(str(error))
        broke = not isinstance(error, RuntimeError) and getattr(self._source, "num_workers", 0) > 0
        return WorkerDied(f"a worker of the DataLoader died: {error or type(error).__name__}") if broke else error

    # ---- after a stop ------------------------------------------------------------------------------------------------

    def _go_to(self, position: int, saved: dict[str, Any]) -> None:
        self._starts = [start for start in saved.get("starts", [0]) if start < position]
        start, skips = self._starts[-1], _way(self._source) == "skip"
        if not skips:
            logger.info("data: going over %d batches again that were trained on before the stop", position - start)
        self.position = start
        self._begin()
        batch = None
        for number in range(start, position):
            self.position = number
            is_last = number == position - 1
            batch = self._again(position, skips and not is_last)
        self.position = position
        self._checksum = checksum(batch)
        if saved.get("position") != position:  # the step under way begins again, with batches that were seen
            return
        if self._checksum == saved.get("checksum"):
            logger.info("data: the last batch before the stop came again as it was")
        else:
            logger.warning("not bit for bit the run as it was: the loader gives other batches than before the stop")

    def _again(self, position: int, skips: bool) -> Any:
        """The next batch; skips: only its place in the order."""
        assert self._iterator is not None
        self._seed_all()
        try:
            if skips:
                return self._iterator._next_index()  # type: ignore[attr-defined]
            with self._deaths.raised():
                return next(self._iterator)
        except StopIteration:
            raise ValueError(
                f"train_loader: expected at least {position - self._starts[-1]} batches, which were trained on before"
                f" the stop, got {self.position - self._starts[-1]}; give the loader that the run began with"
            ) from None
        except (RuntimeError, ConnectionError, EOFError) as error:
            raise self._of_worker(error) from None


class InTurn:
    """Of several processes, which all go over the same loader: each takes its turn of so many batches as there are
    processes, and throws the others away. The loader need not know; one that takes long takes as long in each.

    What is drawn next, dropout say, follows the own batch, as it would in one process.
    """

    def __init__(self, loader: AnyLoader, share: Share) -> None:
        self._loader, self._share = loader, share

    @property
    def position(self) -> int:
        return self._loader.position // self._share.world

    def next(self) -> Any:
        own, state = None, None
        for rank in range(self._share.world):
            batch = self._loader.next()
            if rank == self._share.rank:
                own, state = batch, torch.get_rng_state()
        assert state is not None
        torch.set_rng_state(state)
        return own

    def observe(self, waited: float, computed: float) -> None:
        """How many workers there are is the loader's."""

    def state(self) -> dict[str, Any]:
        return self._loader.state()

    @property
    def choice(self) -> str:
        return f"{self._loader.choice}; {self._share.world} processes take batches in turn"

    def close(self) -> None:
        self._loader.close()


class _Deaths:
    """The end of a DataLoader's worker, told when the next batch is asked for.

    torch's handler of SIGCHLD raises wherever the program is: between two weights of a step, or while that is saved.
    """

    def __init__(self) -> None:
        self._torchs: Any = None
        self._raises = self._missed = False

    def wait(self) -> None:
        """From here on, once torch has put its handler in place."""
        here = threading.current_thread() is threading.main_thread()  # no other may
        if here and self._torchs is None and callable(signal.getsignal(signal.SIGCHLD)):
            self._torchs = signal.signal(signal.SIGCHLD, self._handle)

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        self._raises = True
        try:
            if self._missed:
                self._missed = False
                self._torchs(signal.SIGCHLD, None)
            yield
        finally:
            self._raises = False

    def close(self) -> None:
        if self._torchs is not None:
            signal.signal(signal.SIGCHLD, self._torchs)
            self._torchs = None

    def _handle(self, number: int, frame: Any) -> None:
        if self._raises:
            self._torchs(number, frame)
        else:
            self._missed = True


def begins_once(source: Iterable[Any]) -> bool:
    """An iterator gives itself."""
    return iter(source) is source if isinstance(source, Iterator) else False


def seed_generators(source: Iterable[Any], seed: int) -> None:
    """Those that a loader or sampler draws from instead of torch's own."""
    for part in _parts(source):
        if isinstance(getattr(part, "generator", None), torch.Generator):
            part.generator.manual_seed(seed)


def _parts(source: Iterable[Any]) -> list[Any]:
    parts = [source, *(getattr(source, name, None) for name in ("sampler", "batch_sampler", "dataset"))]
    return [*parts, getattr(parts[2], "sampler", None)]  # the last one: in a batch_sampler of one's own


def check_shared(source: Iterable[Any] | None, name: str) -> None:
    """ValueError for a loader that gives each process its own samples already: of these each would take its turn."""
    for part in () if source is None else _parts(source):
        if isinstance(part, DistributedSampler) and part.num_replicas > 1:
            raise ValueError(
                f"{name}: expected one that gives all processes the same batches, which fit() deals out; got a"
                " DistributedSampler; leave it out"
            )


def peek(source: Iterable[Any], seed: int = 0) -> tuple[Any, Iterable[Any]]:
    """(the first batch, a source that still begins with it). seed: of the run, as a generator draws for it now."""
    if begins_once(source):
        seed_all(seed_of(seed, 0))
    iterator = iter(source)
    try:
        first = next(iterator)
    except StopIteration:
        raise ValueError("train_loader: expected at least one batch an epoch, got none") from None
    return first, _Once(first, iterator) if begins_once(source) else source


class _Once(Iterator[Any]):
    """An iterator whose first batch was looked at."""

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self.kind = type(rest).__name__
        self._batches = itertools.chain([first], rest)

    def __next__(self) -> Any:
        return next(self._batches)


def length(source: Iterable[Any]) -> int | None:
    """Batches of an epoch, if it can tell."""
    if begins_once(source):
        return None
    try:
        return len(source)  # type: ignore[arg-type]
    except TypeError:  # there is no such method, or, of a DataLoader, none of its data set
        return None


def num_samples(source: Iterable[Any], batch: int) -> int | None:
    """Of an epoch, if it can tell. batch: as many as a batch has where nothing says how many there are in all."""
    count = length(source)
    if count is None:
        return None
    if isinstance(source, list | tuple):
        return sum(size(each) for each in source)
    own = getattr(source, "batch_size", None)
    most = None if own is None else count * own  # the last batch may be smaller, or left out
    for part in (getattr(getattr(source, "batch_sampler", None), "sampler", None), *_parts(source)[1::2]):
        try:  # those of a sampler, then of the data set
            total = len(part)
        except (TypeError, NotImplementedError):
            continue
        return total if most is None else min(total, most)
    return count * batch if most is None else most


def size(batch: Any) -> int:
    """Samples in it: the first length of its first tensor or array that has one."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim:
            return len(leaf)
    return 1


def kind(source: Iterable[Any]) -> str:
    count = length(source)
    return f"a {getattr(source, 'kind', type(source).__name__)}" + (f" of {count} batches" if count is not None else "")


def checksum(batch: Any) -> int:
    """Of the shapes, the kinds and the first bytes of all tensors and arrays in it, and of other values as text."""
    total = 0
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            flat = leaf.detach().reshape(-1)[: _CHECKED // leaf.element_size()].contiguous()
            total = zlib.crc32(f"{leaf.dtype} {tuple(leaf.shape)}".encode(), total)
            total = zlib.crc32(flat.view(torch.uint8).numpy().data, total)
        elif isinstance(leaf, np.ndarray):
            total = zlib.crc32(f"{leaf.dtype} {leaf.shape}".encode(), total)
            total = zlib.crc32(np.ascontiguousarray(leaf.reshape(-1)[: _CHECKED // leaf.itemsize]).data, total)
        elif isinstance(leaf, str | bytes | int | float | type(None)):
            total = zlib.crc32(repr(leaf).encode(), total)
    return total


_EXACTNESS = {
    "skip": "it goes on at the very sample, bit for bit",
    "again": "its epoch is gone over again, bit for bit if it gives the same batches again, which is checked",
    "once": "give a new one, which is gone over from its beginning; that it gives the same batches again is checked",
}


def _way(source: Iterable[Any]) -> str:
    """After a stop: a key of _EXACTNESS."""
    if begins_once(source):
        return "once"
    plain = type(source) is DataLoader and source.num_workers == 0 and not isinstance(source.dataset, IterableDataset)
    has_indices = plain and source.batch_sampler is not None  # type: ignore[attr-defined]
    return "skip" if has_indices else "again"
