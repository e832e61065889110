"""Who trains together, and small messages among all of them: numbers summed, JSON sent. A process alone is a world of
one, in which all of this is nothing. No message is a pickle."""

import contextlib
import datetime
import json
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import launched, rendezvous
from .messages import bytes_of_sum

_CHUNK = 32 << 20  # bytes of tensors that are sent at once: as good as any larger size, with little memory


@dataclass
class World:
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    sent: int = 0
    """Bytes that this process sent, of what it tells all once to each other one."""
    waited: float = 0.0
    """Seconds in these messages."""
    hosts: list[str] = field(default_factory=list)
    """Of each rank."""
    timeout: datetime.timedelta | None = None
    """Of groups; None: torch's own."""

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    @property
    def is_first(self) -> bool:
        """Whether it is the one that writes."""
        return self.rank == 0

    def name(self, rank: int) -> str:
        """As people are told of it."""
        return f"rank {rank} on {self.hosts[rank]}" if self.hosts else f"rank {rank}"

    # ---- messages ----------------------------------------------------------------------------------------------------

    def sum(self, values: Sequence[float], group: dist.ProcessGroup | None = None) -> list[float]:
        """Each over all processes, or those of a group, in double."""
        if self.is_alone:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        self._sum(tensor, group)
        result: list[float] = tensor.tolist()
        return result

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Overwrites each by its mean over all processes, taken in fp32."""
        flat = torch.cat([tensor.detach().flatten().float() for tensor in tensors])
        self._sum(flat, None)
        flat /= self.size
        with torch.no_grad():
            for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view(tensor.shape))

    def _sum(self, tensor: Tensor, group: dist.ProcessGroup | None) -> None:
        with self._timed():
            dist.all_reduce(tensor, group=group)
        self.sent += bytes_of_sum(tensor, self.size if group is None else group.size())

    def gather(self, value: Any) -> list[Any]:
        """What each process says, fit for JSON, by rank."""
        if self.is_alone:
            return [value]
        own = json.dumps(value).encode()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._timed():
            dist.all_gather(lengths, torch.tensor([len(own)]))
            longest = max(int(length) for length in lengths)
            texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(texts, _bytes(own, longest))
        self.sent += (self.size - 1) * longest
        return [json.loads(bytes(t[: int(n)].numpy())) for t, n in zip(texts, lengths, strict=True)]

    def from_first(self, value: Any) -> Any:
        """What the first process says, fit for JSON."""
        if self.is_alone:
            return value
        content = json.dumps(value).encode() if self.is_first else b""
        length = torch.tensor([len(content)])
        with self._timed():
            dist.broadcast(length, 0)
            text = _bytes(content, int(length))
            dist.broadcast(text, 0)
        self.sent += (self.size - 1) * len(content)
        return json.loads(bytes(text.numpy()))

    def tensors_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrites them by those of the first process, which are as many, as large and of the same dtype."""
        if self.is_alone:
            return
        with self._timed(), torch.no_grad():
            for tensor in tensors:
                whole = tensor.contiguous()
                if whole.numel():
                    for part in whole.view(-1).view(torch.uint8).split(_CHUNK):
                        dist.broadcast(part, 0)
                    self.sent += (self.size - 1) * whole.numel() * whole.element_size() * self.is_first
                if whole is not tensor:
                    tensor.copy_(whole)

    def barrier(self) -> None:
        """All have come here."""
        self.sum([0.0])

    @contextlib.contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """The first process of each machine is through before the others of it begin: one measures or fills a cache.
        All must come here."""
        if self.local_rank:
            self.barrier()
        yield
        if not self.local_rank:
            self.barrier()

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - began


def _bytes(content: bytes, length: int) -> Tensor:
    return torch.frombuffer(bytearray(content.ljust(length, b" ") or b" "), dtype=torch.uint8)[:length]


@contextlib.contextmanager
def joined(backend: str = "gloo", timeout: float = 1800.0) -> Iterator[World]:
    """The world that a launcher made this process a part of, if one did; torch's group of all ends with it.

    A group that is there already, made by a script, is used and left.
    """
    is_own = not (dist.is_available() and dist.is_initialized())
    if is_own and not launched.is_one_of_several():
        yield World()
        return
    if is_own:
        rendezvous.join(backend, timeout)
    try:
        world = current()
        world.timeout = datetime.timedelta(seconds=timeout) if is_own else None
        yield world
    finally:
        # A process that ends while its group is there aborts now and then (pytorch issue 190489).
        if is_own and dist.is_initialized():
            dist.destroy_process_group()


def current() -> World:
    """Of the process group that is there; a world of one if there is none. All processes must call it."""
    if not (dist.is_available() and dist.is_initialized()):
        return World()

    world = World(
        dist.get_rank(), dist.get_world_size(),
        launched.number("LOCAL_RANK", 0), launched.number("LOCAL_WORLD_SIZE", 1),
    )  # fmt: skip
    world.hosts = world.gather(socket.gethostname())
    return world
