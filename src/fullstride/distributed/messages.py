"""What sums of tensors over processes are sent in: messages of a good size, and how many bytes one is."""

from collections.abc import Iterable

from torch import Tensor

_MOST = 8 << 20  # numbers, or one tensor: 32 MiB in fp32, as good as any larger size, with little memory


def bytes_of_sum(tensor: Tensor, size: int) -> int:
    """That each of so many processes sends, as far as collectives tell: in a ring 2 (n - 1) / n of what is summed."""
    return 2 * (size - 1) * tensor.numel() * tensor.element_size() // size


def together(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Those that go in one message each, in order."""
    found: list[list[Tensor]] = []
    numbers = _MOST
    for tensor in tensors:
        if numbers + tensor.numel() > _MOST:
            found.append([])
            numbers = 0
        found[-1].append(tensor)
        numbers += tensor.numel()
    return found
