"""All that changes while a run goes on: into a snapshot, and out of one.

Order of the data, augmentation, dropout and learning rate are functions of the counters here and of the config. So a
checkpoint is weights, optimizer, counters and, in the middle of a step, the gradients so far.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor, nn

from ..optim import DynamicFreezer
from .checkpoints import flat_state
from .checkpoints.store import Snapshot


@dataclass
class State:
    step: int = 0  # optimizer steps done, skipped ones among them
    micro: int = 0  # micro-batches of the next one that are in the gradients already
    micro_losses: list[float] = field(default_factory=list)  # of these
    micro_samples: int = 0  # in these
    samples: int = 0  # in those of the steps done
    step_losses: list[float] = field(default_factory=list)  # of the steps since the last row of metrics
    evaluated: int = 0  # the step after which the last evaluation was
    best: dict[str, Any] | None = None  # its row
    since_best: int = 0  # evaluations
    nonfinite: int = 0  # steps skipped in a row
    stopped: str = ""  # why the run is over before its last step
    data: dict[str, Any] | None = None  # what the loader wants to be told

    def begin_step(self) -> None:
        """The next one has no micro-batch yet, or none any more."""
        self.micro, self.micro_losses, self.micro_samples = 0, [], 0

    def document(self) -> dict[str, Any]:
        """Fit for JSON, which has no NaN: a loss may be one."""
        flat: dict[str, Any] = flat_state.flatten(asdict(self))[1]
        return flat

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "State":
        names = {f.name for f in fields(cls)}
        return cls(**{name: flat_state.unflatten({}, value) for name, value in document.items() if name in names})


def take(
    state: State, environment: dict[str, Any], model: nn.Module, optimizer: Any, freezer: DynamicFreezer | None
) -> Snapshot:
    """A view of everything, to be copied before the next step."""
    optimizer_tensors, optimizer_document = flat_state.flatten(optimizer.state_dict())
    tensors = {"model": model.state_dict(), "optimizer": optimizer_tensors}
    if state.micro:
        tensors["gradients"] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    frozen = None if freezer is None else freezer.state_dict()
    documents = {
        "optimizer": optimizer_document,
        "state": {**state.document(), "environment": environment, "freezer": frozen},
    }
    return Snapshot(state.step, tensors, documents)


def take_weights(state: State, model: nn.Module) -> Snapshot:
    """The weights alone: the best ones are kept to be used, not to be trained on."""
    return Snapshot(state.step, {"model": model.state_dict()}, {"state": state.document()})


def restore(
    snapshot: Snapshot, precision: str, model: nn.Module, optimizer: Any, freezer: DynamicFreezer | None
) -> State:
    model.load_state_dict(snapshot.tensors["model"])
    optimizer.load_state_dict(flat_state.unflatten(snapshot.tensors["optimizer"], snapshot.documents["optimizer"]))
    document = snapshot.documents["state"]
    if freezer is not None and document["freezer"] is not None:
        freezer.load_state_dict(document["freezer"])  # last, as it wants
    state = State.from_document(document)
    if document["environment"]["precision"] == precision:
        _restore_gradients(snapshot.tensors.get("gradients", {}), model)
    else:  # they are of another dtype, or scaled: the step under way begins again
        state.begin_step()
    return state


def _restore_gradients(gradients: dict[str, Tensor], model: nn.Module) -> None:
    parameters = dict(model.named_parameters())
    for name, gradient in gradients.items():
        parameters[name].grad = gradient
