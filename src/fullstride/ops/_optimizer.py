"""What the optimizers share in Python: the struct of the C ABI, a tensor with its states, and the list of them.

    slots = [make_slot(w, weight_format="split", state_format="8bit", stream=i) for i, w in enumerate(weights)]
    tensors = ParamList(slots)          # the array the kernels take, built once
    adam_step(tensors, grads, [AdamGroup(lr=1e-3)])

A step then only writes the addresses of the gradients and adds one to the steps.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _native
from . import _formats as formats
from ._gradient_norms import recall
from ._tensors import mark_written
from .grads import grad_norm_reference, with_known

WEIGHT_FORMATS = {"fp32": 0, "split": 1, "bf16": 2}
"""The codes of fs_weight_format."""
STATE_FORMATS = {"fp32": 0, "bf16": 1, "8bit": 2}
"""The codes of fs_state_format."""
_STATE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "8bit": torch.uint8}
WEIGHT_STREAM = 1 << 63
"""Added to a tensor's stream for the random bits of bf16 weights."""


class Param(ctypes.Structure):
    """fs_param: one tensor of the list."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "weight_lo", "grad", "m", "v", "v_max")),
        *((name, ctypes.c_void_p) for name in ("m_scale", "v_scale", "v_max_scale", "slow")),
        ("numel", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("stream", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in ("group", "weight_format", "grad_dtype", "state_format")),
    ]


@dataclass
class Slot:
    """One tensor with its states, in the formats they are kept in. Scales belong to 8-bit states."""

    weight: Tensor
    weight_format: str = "fp32"
    state_format: str = "fp32"
    weight_lo: Tensor | None = None
    m: Tensor | None = None
    v: Tensor | None = None
    v_max: Tensor | None = None
    m_scale: Tensor | None = None
    v_scale: Tensor | None = None
    v_max_scale: Tensor | None = None
    slow: Tensor | None = None  # Lookahead
    stream: int = 0
    group: int = 0
    step: int = 0  # where a ParamList starts; from then on the list counts

    def load_weight(self) -> Tensor:
        """The weight in fp32."""
        if self.weight_lo is not None:
            return formats.merge(self.weight.detach(), self.weight_lo)
        return self.weight.detach().float()

    def load_state(self, name: str) -> Tensor | None:
        """m, v or v_max in fp32; with 8-bit states the square roots of v and v_max."""
        stored, scale = getattr(self, name), getattr(self, f"{name}_scale")
        if scale is None:
            return None if stored is None else stored.float()
        return formats.decode_m(stored, scale) if name == "m" else formats.decode_root(stored, scale)

    def store_weight(self, value: Tensor, seed: int, step: int) -> None:
        """An fp32 value in the weight's format."""
        weight = self.weight.detach()
        if self.weight_lo is not None:
            hi, lo = formats.split(value)
            weight.copy_(hi)
            self.weight_lo.copy_(lo)
        elif self.weight_format == "bf16":
            random = formats.random_bits(seed, step, self.stream + WEIGHT_STREAM, value.numel())
            weight.copy_(formats.round_to_bf16(value, formats.noise_of_m(random, 16).view(value.shape)))
        else:
            weight.copy_(value)

    def store_states(self, seed: int, step: int, **values: Tensor | None) -> None:
        """m, v, v_max, as load_state gives them, in the states' format."""
        random = formats.random_bits(seed, step, self.stream, self.weight.numel())
        for name, value in values.items():
            if value is None:
                continue
            if self.state_format == "8bit":
                code, scale = (formats.encode_m if name == "m" else formats.encode_root)(value, random)
                getattr(self, name).copy_(code)
                getattr(self, f"{name}_scale").copy_(scale)
            elif self.state_format == "bf16":
                noise = (formats.noise_of_m if name == "m" else formats.noise_of_v)(random, 16)
                getattr(self, name).copy_(formats.round_to_bf16(value, noise.view(value.shape)))
            else:
                getattr(self, name).copy_(value)

    def look_ahead(self, weight: Tensor, alpha: float) -> Tensor:
        """The weight after Lookahead's interpolation, when it is due and there are slow weights."""
        if self.slow is None or alpha <= 0:
            return weight
        self.slow += alpha * (weight - self.slow)
        return self.slow


def make_slot(
    weight: Tensor,
    weight_format: str = "fp32",
    state_format: str = "fp32",
    states: Sequence[str] = ("m", "v"),
    lookahead: bool = False,
    stream: int = 0,
    group: int = 0,
) -> Slot:
    """A slot with zeroed states. "split" takes an fp32 weight and makes a bf16 one; the others keep the given one."""
    if weight_format not in WEIGHT_FORMATS or state_format not in STATE_FORMATS:
        raise ValueError(
            f"expected a weight format of {', '.join(WEIGHT_FORMATS)} and a state format of {', '.join(STATE_FORMATS)},"
            f" got {weight_format!r} and {state_format!r}"
        )
    dtype = torch.bfloat16 if weight_format == "bf16" else torch.float32
    if weight.dtype != dtype or not weight.is_contiguous():
        raise ValueError(
            f"expected a contiguous {dtype} weight for the format {weight_format!r}, got {weight.dtype} with strides"
            f" {tuple(weight.stride())}; convert it first"
        )
    slot = Slot(weight, weight_format, state_format, stream=stream, group=group)
    if lookahead:
        slot.slow = weight.detach().float().clone()
    if weight_format == "split":
        slot.weight, slot.weight_lo = formats.split(weight.detach())
    for name in states:
        setattr(slot, name, torch.zeros_like(weight, dtype=_STATE_DTYPES[state_format], requires_grad=False))
        if state_format == "8bit":
            setattr(slot, f"{name}_scale", weight.new_zeros(-(-weight.numel() // formats.BLOCK), dtype=torch.float32))
    return slot


class ParamList:
    """The array of Param for a list of slots, kept from step to step. `steps[i]` counts the steps of slot i."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = list(slots)
        self._array: Any = np.zeros(len(self.slots), dtype=np.dtype(Param))
        self._numel = np.array([slot.weight.numel() for slot in self.slots], dtype=np.int64)
        self._shapes = [slot.weight.shape for slot in self.slots]
        self._num_groups = 1 + max((slot.group for slot in self.slots), default=-1)
        self._lacking = {
            name: {slot.group for slot in self.slots if getattr(slot, name) is None} for name in ("m", "v", "v_max")
        }
        self._gradients: list[Tensor | None] = []
        self.steps: Any = self._array["step"]
        for param, slot in zip(self._array, self.slots, strict=True):  # param: a view of one element
            for name in ("weight", "weight_lo", "m", "v", "v_max", "m_scale", "v_scale", "v_max_scale", "slow"):
                tensor = getattr(slot, name)
                if tensor is not None:
                    if not tensor.is_contiguous() or not tensor.is_cpu:
                        raise ValueError(f"expected contiguous CPU tensors, got {name} with strides {tensor.stride()}")
                    param[name] = tensor.data_ptr()
            param["step"], param["stream"], param["group"] = slot.step, slot.stream, slot.group
            param["weight_format"] = WEIGHT_FORMATS[slot.weight_format]
            param["state_format"] = STATE_FORMATS[slot.state_format]
        self._check_distinct()

    def __len__(self) -> int:
        return len(self.slots)

    def _check_distinct(self) -> None:
        addresses = self._array["weight"][self._numel > 0]
        if len(np.unique(addresses)) != len(addresses):
            raise ValueError("expected each weight once, got the same memory twice; threads would race for it")

    def _follow_weights(self) -> None:
        """The weights' addresses anew, where `weight.data = other` moved one since the last step."""
        addresses = np.array([slot.weight.data_ptr() for slot in self.slots], dtype=self._array["weight"].dtype)
        moved = np.flatnonzero(addresses != self._array["weight"])
        if not len(moved):
            return
        for i in moved:
            weight, numel = self.slots[i].weight, int(self._numel[i])
            dtype = torch.float32 if self.slots[i].weight_format == "fp32" else torch.bfloat16
            if weight.numel() != numel or weight.dtype != dtype or not weight.is_cpu or not weight.is_contiguous():
                raise ValueError(
                    f"expected weight {i} to stay a contiguous {dtype} CPU tensor of {numel} elements, got"
                    f" {weight.dtype} of shape {tuple(weight.shape)} on {weight.device}; make a new ParamList"
                )
        self._array["weight"] = addresses
        self._check_distinct()

    def take_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Those of the coming step, one a slot. A slot with None is left out of it."""
        if len(gradients) != len(self.slots):
            raise ValueError(f"expected a gradient or None for each of {len(self.slots)} tensors, got {len(gradients)}")
        self._follow_weights()
        addresses: list[int] = []
        dtypes: list[int] = []
        kept = list(gradients)
        codes, strided = _native.DTYPES, torch.strided
        for i, (given, shape) in enumerate(zip(kept, self._shapes, strict=True)):
            if given is None:
                addresses.append(0)
                dtypes.append(0)
                continue
            code = codes.get(given.dtype, 2)
            if code > 1 or given.shape != shape or given.layout is not strided or not given.is_cpu:
                raise _refusal(given, shape)
            if not given.is_contiguous():
                kept[i] = given = given.contiguous()
            addresses.append(given.data_ptr())
            dtypes.append(code)
        self._gradients = kept  # alive until the step is done
        self._present = np.array([gradient is not None for gradient in kept], dtype=bool)
        self._array["grad"] = addresses
        self._array["grad_dtype"] = dtypes
        self._array["numel"] = np.where(self._present, self._numel, 0)

    def grad_norm(self) -> float:
        """Of the gradients that were taken, all together; not finite if one of them is not. ops/grads.py in fewer
        questions, because the addresses are known already."""
        sums = [None if gradient is None else recall(gradient) for gradient in self._gradients]
        known = sum(value for value in sums if value is not None)
        if not _native.available():
            read = [g for g, value in zip(self._gradients, sums, strict=True) if g is not None and value is None]
            return with_known(grad_norm_reference(read)[0], known)
        table = np.empty((len(self.slots), 3), dtype=np.int64)  # fs_tensor
        for column, name in enumerate(("grad", "numel", "grad_dtype")):
            table[:, column] = self._array[name]
        table[[value is not None for value in sums], 1] = 0
        result = ctypes.c_double(0)
        _native.kernels.grad_norm(table.ctypes.data, len(table), ctypes.byref(result))
        return with_known(result.value, known)

    def drop_gradients(self) -> None:
        """Those that were taken. Kept any longer, they would lie in memory beside the next ones."""
        self._gradients = []

    def begin_step(self) -> None:
        """Counts the step of every slot whose gradient was taken."""
        if len(self._gradients) != len(self.slots):
            raise ValueError("expected gradients for this step, got none since the last one; take_gradients() first")
        self.steps += self._present

    def lacks(self, group: int, *states: str) -> bool:
        """Whether a slot of the group has one of these states not."""
        return any(group in self._lacking[name] for name in states)

    @property
    def gradients(self) -> list[Tensor | None]:
        """Those that were taken for this step."""
        return self._gradients

    @property
    def address(self) -> int:
        return int(self._array.ctypes.data)


def _refusal(given: Tensor, shape: torch.Size) -> ValueError:
    if not given.is_cpu or given.layout is not torch.strided:
        return ValueError(f"expected dense CPU gradients, got {given.layout} on {given.device}; convert it")
    return ValueError(
        f"expected an fp32 or bf16 gradient of shape {tuple(shape)}, got {given.dtype} of shape {tuple(given.shape)}"
    )


def check_groups(op: str, groups: Sequence[ctypes.Structure], kind: type[ctypes.Structure]) -> None:
    """The kernel would read the fields of another struct as its own."""
    for group in groups:
        if type(group) is not kind:
            raise TypeError(f"{op}: expected groups of type {kind.__name__}, got {type(group).__name__}")


def run_step(
    kernel: str,
    reference: Callable[..., None],
    tensors: ParamList,
    gradients: Sequence[Tensor | None] | None,
    groups: Sequence[ctypes.Structure],
    grad_scale: float,
    lookahead_alpha: float,
    seed: int,
) -> None:
    """One step of every tensor that has a gradient: by the kernel, or by the reference where there is no library.

    Without gradients: with those that tensors.take_gradients() took.
    The result is a function of the values, the seed and each tensor's step and stream: neither the number of threads
    nor the other tensors of the list matter.
    """
    if tensors._num_groups > len(groups):
        raise ValueError(f"expected a group below {len(groups)}, got {tensors._num_groups - 1}; pass one for each")
    if gradients is not None:
        tensors.take_gradients(gradients)
    tensors.begin_step()
    if not tensors.slots:
        return
    if _native.available():
        array = (type(groups[0]) * len(groups))(*groups)
        call = getattr(_native.kernels, kernel)
        call(tensors.address, len(tensors), ctypes.addressof(array), grad_scale, lookahead_alpha, seed, 0)
        taken = zip(tensors.slots, tensors.gradients, strict=True)
        mark_written([slot.weight for slot, gradient in taken if gradient is not None])
    else:
        with torch.no_grad():
            for slot, gradient, step in zip(tensors.slots, tensors.gradients, tensors.steps, strict=True):
                if gradient is not None:
                    reference(slot, gradient, groups[slot.group], int(step), grad_scale, lookahead_alpha, seed)
    tensors.drop_gradients()
