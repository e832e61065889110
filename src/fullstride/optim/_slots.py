"""The tensors of an optimizer as the kernels take them: a slot for each parameter that has had a gradient.

The states live in optimizer.state, under torch's names, where users and state_dict() find them; the slots point at the
same tensors. Everything here happens at the first step and whenever something has changed, except `is_current`,
`take_gradients`, `begin_step` and `end_step`, which happen at every step.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor

from ..ops import _formats as formats
from ..ops._optimizer import ParamList, Slot
from ..ops.convert import merge

STATE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "8bit": torch.uint8}
Names = tuple[tuple[str, str], ...]
"""(name in the slot, key in optimizer.state) of each state a group needs."""

_CHUNK = 1 << 20  # elements converted at a time: the torch code of the formats takes some 50 bytes for each
# "Random" bits that are one half in the places where encode_m and encode_root read them: rounding to nearest.
_HALF_OF_M, _HALF_OF_ROOT = 0x80080000, 0x80040000


class SlotList:
    """Slots of all groups, the state dicts and tensors they were made from, and the array for the kernel."""

    def __init__(
        self, groups: Sequence[dict[str, Any]], state: Any, names: Sequence[Names], precision: str, lookahead: bool,
        number_of: Callable[[Tensor], int] | None = None,
    ) -> None:  # fmt: skip
        """number_of: of a parameter, where it is not its place in the groups."""
        self.flat = [p for group in groups for p in group["params"]]
        self.sizes = [len(group["params"]) for group in groups]
        self.names = list(names)
        self.state = state
        self.params: list[Tensor] = []
        self.waiting: list[Tensor] = []  # without a gradient so far
        self.orders: list[tuple[int, ...] | None] = []  # of the dimensions in memory, where it is not theirs
        self._dicts: list[dict[str, Any]] = []
        slots: list[Slot] = []
        numbers = {p: i if number_of is None else number_of(p) for i, p in enumerate(self.flat)}
        for i, group in enumerate(groups):
            for p in group["params"]:
                kept = state.get(p) or {}
                if p.grad is None and "step" not in kept and not any(key in kept for _, key in self.names[i]):
                    self.waiting.append(p)
                else:
                    slots.append(self._slot(p, state[p], self.names[i], precision, lookahead, numbers[p], i))
        self.tensors = ParamList(slots)
        self._permuted = [(i, order) for i, order in enumerate(self.orders) if order is not None]
        self._addresses = [p.data_ptr() for p in self.params]
        self._share_steps()
        self._states = list(state.values())
        self._values = list(chain.from_iterable(kept.values() for kept in self._dicts))

    def _slot(
        self, p: Tensor, state: dict[str, Any], names: Names, precision: str, lookahead: bool, stream: int, group: int
    ) -> Slot:
        check_parameter(p)
        order = memory_order(p)
        if p.dtype is torch.float32 or (not state.get("weight_lo", p).numel() and p.numel()):
            state.pop("weight_lo", None)  # of the time when it was split; model.float() and the like leave it empty
        lo = state.get("weight_lo")
        if lo is not None and (lo.dtype is not torch.int16 or lo.shape != p.shape):
            raise ValueError(
                f"expected an int16 lower half of shape {tuple(p.shape)}, got {lo.dtype} of shape {tuple(lo.shape)}"
            )
        weight_format = "fp32" if p.dtype is torch.float32 else "bf16" if lo is None else "split"
        slot = Slot(permuted(p, order), weight_format, precision, permuted(lo, order), stream=stream, group=group)
        slot.step = _step_so_far(state, names)
        for name, key in names:
            fit_state(state, key, p, precision, root=name != "m")
            setattr(slot, name, permuted(state[key], order))
            setattr(slot, f"{name}_scale", state.get(f"{key}_scale"))
        if lookahead and state.get("slow") is None:
            state["slow"] = torch.empty_like(p, dtype=torch.float32, requires_grad=False)
            # By the kernel: the reference's integers took 0.95 GiB for 52 M split weights, which a kept heap keeps.
            whole = slot.load_weight() if slot.weight_lo is None else merge(slot.weight, slot.weight_lo)
            permuted(state["slow"], order).copy_(whole)
        if lookahead:
            slot.slow = permuted(state["slow"], order)
        self.params.append(p)
        self.orders.append(order)
        self._dicts.append(state)
        return slot

    def _share_steps(self) -> None:
        """state[p]["step"] become views of one vector, so that counting a step is one addition."""
        # float64: torch's optimizers count in floating-point tensors, and fp32 stops at 2^24.
        steps = torch.tensor([slot.step for slot in self.tensors.slots], dtype=torch.float64, device="cpu")
        self._steps = steps.numpy()
        for state, step in zip(self._dicts, steps, strict=True):
            state["step"] = step

    def is_current(self, groups: Sequence[dict[str, Any]], state: Any, names: Sequence[Names]) -> bool:
        """Whether parameters, groups and states are still those that the slots were made from."""
        return (
            state is self.state
            and names == self.names
            and [len(group["params"]) for group in groups] == self.sizes
            and all(map(is_, chain.from_iterable(group["params"] for group in groups), self.flat))
            and [p.data_ptr() for p in self.params] == self._addresses
            and _same(list(state.values()), self._states)
            and sum(map(len, self._dicts)) == len(self._values)
            and all(map(is_, chain.from_iterable(map(dict.values, self._dicts)), self._values))
            and all(p.grad is None for p in self.waiting)
        )

    def take_gradients(self) -> None:
        """Those that the parameters have now."""
        gradients = [p.grad for p in self.params]
        for i, order in self._permuted:
            gradient = gradients[i]
            if gradient is not None and gradient.layout is torch.strided:
                gradients[i] = gradient.permute(order)
        self.tensors.take_gradients(gradients)

    def begin_step(self) -> None:
        self.tensors.steps[:] = self._steps

    def end_step(self) -> None:
        self._steps[:] = self.tensors.steps


def _same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(map(is_, left, right))


def _step_so_far(state: dict[str, Any], names: Names) -> int:
    """A first moment that begins now begins at step 1: momentum switched on later; one of torch's SGD has no step."""
    keys = [key for name, key in names if name == "m"]
    if keys and state.get(keys[0]) is None:
        return 0
    step = state.get("step")
    return int(step) if step is not None else 1 if keys else 0


def check_parameter(p: Tensor) -> None:
    """One line about what the optimizers cannot take."""
    if p.dtype not in (torch.float32, torch.bfloat16):
        advice = {
            torch.float64: "convert the model with model.float(), or use torch.optim",
            torch.float16: "keep the weights in fp32 and run the forward pass under torch.autocast",
        }.get(p.dtype, "leave it out of the optimizer, or make it a buffer")
        raise ValueError(f"expected fp32 or bf16 parameters, got {p.dtype} of shape {tuple(p.shape)}; {advice}")
    if not p.is_cpu or p.layout is not torch.strided:
        raise ValueError(f"expected dense CPU parameters, got {p.layout} on {p.device}; move the model to the CPU")
    if not permuted(p, memory_order(p)).is_contiguous():
        raise ValueError(
            f"expected parameters that fill their memory, got shape {tuple(p.shape)} with strides {p.stride()};"
            " make it contiguous"
        )


def memory_order(p: Tensor) -> tuple[int, ...] | None:
    """The dimensions from the widest stride to the narrowest; None for the usual order, which channels_last has not."""
    if p.is_contiguous():
        return None
    strides = p.stride()
    return tuple(sorted(range(p.dim()), key=strides.__getitem__, reverse=True))


def permuted(x: Any, order: tuple[int, ...] | None) -> Any:
    return x if order is None or x is None else x.detach().permute(order)


def fit_state(state: dict[str, Any], key: str, p: Tensor, precision: str, root: bool) -> None:
    """state[key] (and its scale) as `precision` and the layout of p want it: made, kept or converted."""
    value, scale_key = state.get(key), f"{key}_scale"
    dtype = STATE_DTYPES[precision]
    if value is None:
        state[key] = torch.zeros_like(p, dtype=dtype, requires_grad=False)
        if precision == "8bit":
            state[scale_key] = torch.zeros(num_blocks(p), dtype=torch.float32, device="cpu")
        return
    if value.shape != p.shape:
        raise ValueError(f"expected {key} of shape {tuple(p.shape)}, got {tuple(value.shape)}; it is of another model")
    if value.dtype is torch.uint8 and (scale_key not in state or state[scale_key].numel() != num_blocks(p)):
        raise ValueError(f"expected {scale_key} with {num_blocks(p)} elements beside the 8-bit {key}; load both")
    if value.dtype is dtype and value.stride() == p.stride():
        return
    # The layout first, while it has a value for each element.
    whole = torch.empty_like(p, dtype=torch.float32, requires_grad=False).copy_(load_state(state, key, root))
    store_state(state, key, whole, precision, root)


def load_state(state: dict[str, Any], key: str, root: bool) -> Tensor:
    """state[key] in fp32, as torch's optimizers keep it. root: it is a second moment, of which 8 bits keep the root."""
    value: Tensor = state[key].detach()
    if value.dtype is not torch.uint8:
        return value.float()
    scale = state[f"{key}_scale"]
    result = torch.empty_like(value, dtype=torch.float32)
    order = memory_order(value)
    code, whole = permuted(value, order).reshape(-1), permuted(result, order).view(-1)
    for start in range(0, code.numel(), _CHUNK):
        part, blocks = slice(start, start + _CHUNK), slice(start // formats.BLOCK, (start + _CHUNK) // formats.BLOCK)
        if root:
            whole[part] = formats.decode_root(code[part], scale[blocks]).square()
        else:
            whole[part] = formats.decode_m(code[part], scale[blocks])
    return result


def store_state(state: dict[str, Any], key: str, whole: Tensor, precision: str, root: bool) -> None:
    """state[key] from a dense fp32 tensor, rounded to nearest."""
    scale_key = f"{key}_scale"
    state.pop(scale_key, None)
    if precision != "8bit":
        state[key] = whole.to(STATE_DTYPES[precision])
        return
    state[key] = torch.empty_like(whole, dtype=torch.uint8)
    state[scale_key] = torch.empty(num_blocks(whole), dtype=torch.float32, device="cpu")
    order = memory_order(whole)
    values, codes = permuted(whole, order).reshape(-1), permuted(state[key], order).view(-1)
    encode, half = (formats.encode_root, _HALF_OF_ROOT) if root else (formats.encode_m, _HALF_OF_M)
    for start in range(0, values.numel(), _CHUNK):
        part, blocks = slice(start, start + _CHUNK), slice(start // formats.BLOCK, (start + _CHUNK) // formats.BLOCK)
        value = values[part].sqrt() if root else values[part]
        bits = torch.full((value.numel(),), half, dtype=torch.int64, device="cpu")
        codes[part], state[scale_key][blocks] = encode(value, bits)


def num_blocks(p: Tensor) -> int:
    return -(-p.numel() // formats.BLOCK)
