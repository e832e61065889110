"""States of the optimizer, each parameter's in one process alone: ZeRO-1, by torch's ZeroRedundancyOptimizer.

torch deals the parameters out, steps each process's own by an optimizer of ours, and sends the new weights to all. Of a
split weight it sends the upper half, which is what forward and backward use; lower halves stay with their owner until
somebody wants whole weights (gather_lower_halves). The norm that gradients are clipped by is that of all.

What is saved is the state of one process, gathered here: torch's own way of doing so sends pickles, and knows
nothing of 8-bit formats, seeds and Lookahead. Rajbhandari et al., https://arxiv.org/abs/1910.02054
"""

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..rewriting import split_weights
from .world import World

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit, which torch itself calls there
    from torch.distributed.optim import ZeroRedundancyOptimizer


class Sharded(ZeroRedundancyOptimizer):
    """`optim` is the optimizer of this process's own parameters; what is asked of this object and not known is its.

    sent: bytes of weights and states that this process sent, what all get once to each other. waited: seconds in which
    all sent their weights.
    """

    def __init__(self, model: nn.Module, build: Callable[[list[nn.Parameter]], Any], world: World) -> None:
        self.world, self.sent, self.waited = world, 0, 0.0
        parameters = list(model.parameters())
        if len(parameters) < world.size:
            raise ValueError(
                f"distributed.shard_optimizer: expected as many parameters as processes, got {len(parameters)} for"
                f" {world.size} processes"
            )
        make: Any = lambda params, **_: build(_flat(params))  # noqa: E731  # torch calls it as it would a class
        super().__init__(parameters, optimizer_class=make)
        self.optim.combine_norms = self._whole_norm
        self.optim.number_of = {p: i for i, p in enumerate(parameters)}.__getitem__  # else states round otherwise
        self._model = model

    @property
    def state(self) -> Any:
        return self.__dict__["optim"].state if "optim" in self.__dict__ else {}

    @state.setter
    def state(self, _: Any) -> None:
        """torch's base class wants one of its own, in which nothing would stand."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "optim" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.__dict__["optim"], name)

    def _whole_norm(self, norm: float) -> float:
        return math.sqrt(self.world.sum([norm * norm])[0])

    def _sync_params(self) -> None:
        """torch's, at the end of a step."""
        began = time.perf_counter()
        super()._sync_params()  # type: ignore[misc]
        own = sum(p.numel() * p.element_size() for group in self.optim.param_groups for p in group["params"])
        self.sent, self.waited = self.sent + (self.world.size - 1) * own, self.waited + time.perf_counter() - began

    def owner(self, p: Tensor) -> int:
        return int(self._param_to_rank[p])

    def gather_lower_halves(self) -> None:
        """All processes have them then, as they have the upper ones. All must call it."""
        halves = {hi: lo for module in self._model.modules() for _, hi, lo in split_weights.halves(module)}
        for hi, lo in halves.items():
            dist.broadcast(lo.view(torch.uint8) if lo.dim() else lo, self.owner(hi))
            if self.owner(hi) == self.world.rank:
                self.sent += (self.world.size - 1) * lo.numel() * lo.element_size()

    # ---- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """In the first process that of an optimizer of all parameters, in the others nothing. All must call it."""
        own = self.optim.state_dict()
        mine = [self._param_to_index[p] for group in self.optim.param_groups for p in group["params"]]
        plan = self.world.gather({mine[i]: _described(state) for i, state in own["state"].items()})
        found: dict[int, dict[str, Any]] = {}
        for rank, described in enumerate(plan):
            for text, fields in described.items():
                state = own["state"][mine.index(int(text))] if rank == self.world.rank else {}
                found[int(text)] = self._to_first(rank, state, fields)
        if not self.world.is_first:
            return {"state": {}, "param_groups": []}
        groups = [{**own["param_groups"][0], "params": list(range(len(self._all_params)))}]
        return {**own, "state": dict(sorted(found.items())), "param_groups": groups}

    def _to_first(self, rank: int, state: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        """A state of one parameter: numbers as they were described, tensors sent by their owner."""
        result: dict[str, Any] = {}
        for name, described in fields.items():
            if not isinstance(described, dict):
                result[name] = described
                continue
            tensor = state.get(name)
            if rank and self.world.is_first:
                tensor = torch.empty(described["shape"], dtype=getattr(torch, described["dtype"]))
                dist.recv(_sendable(tensor), rank)
            elif rank and rank == self.world.rank and tensor is not None:
                dist.send(_sendable(tensor.contiguous()), 0)
                self.sent += tensor.numel() * tensor.element_size()
            result[name] = tensor
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """That of an optimizer of all parameters, of which each process takes what is its own."""
        groups = state_dict["param_groups"]
        if len(groups) != 1 or len(groups[0]["params"]) != len(self._all_params):
            raise ValueError(
                f"expected the state of one group with {len(self._all_params)} parameters, got"
                f" {[len(group['params']) for group in groups]}; pass its own"
            )
        mine = [self._param_to_index[p] for p in self.optim.param_groups[0]["params"]]
        states = {i: state_dict["state"][index] for i, index in enumerate(mine) if index in state_dict["state"]}
        own_groups = [{**groups[0], "params": list(range(len(mine)))}]
        self.optim.load_state_dict({**state_dict, "state": states, "param_groups": own_groups})
        for key, value in groups[0].items():
            if key not in ("params", "param_names"):
                self.param_groups[0][key] = value


def _flat(params: Any) -> list[nn.Parameter]:
    """torch hands over parameters, or groups of them."""
    found = list(params)
    return [p for group in found for p in group["params"]] if found and isinstance(found[0], dict) else found


def _described(state: dict[str, Any]) -> dict[str, Any]:
    """Fit for JSON, with what a tensor needs to be received."""
    return {
        name: {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")} if isinstance(x, Tensor) else x
        for name, x in state.items()
    }


def _sendable(tensor: Tensor) -> Tensor:
    """gloo does not know all dtypes; bytes are bytes."""
    return tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor
