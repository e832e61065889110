"""The contrastive loss of CLIP by ops.contrastive_loss, for modules whose forward takes (image, text, scale).

    (cross-entropy along the rows of s I T^T + along its first B columns) / 2

Training code brings its own ContrastiveLoss or ClipLoss. They are known by what they do: a module of such a name that
has nothing of its own but plain values is run on probes, and if the loss and its gradients are those of the formula,
its forward is replaced. It still runs where the op would compute something else, and where it is called in another way,
with output_dict=True say.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.contrastive_loss import contrastive_loss, contrastive_loss_reference
from .stand_in import PLAIN_VALUES, StandIn, own_attributes

_NAMES = ("contrastive", "cliploss")
_FEW, _MANY, _MORE_TEXTS = 3, 130, 2  # pairs of probes; many show who takes only the hardest of them
_WIDTH = 4  # so few that among many there are vectors of any angle
_SCALES = (0.01, 1.5, 1e4)  # the last shows who limits it, as CLIP limits it to 100
NOT_CONTRASTIVE = "computes something else than the contrastive loss of CLIP"


class ContrastiveForward(StandIn):
    """Stands in for the forward of a contrastive loss. texts: "more" than images are fine, or "as many"."""

    def __init__(self, module: nn.Module, texts: str) -> None:
        self.module, self.texts = module, texts
        self.plain = _plain(module)  # on which the outcome of the probe may depend

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != 3 or not self._fits(*args):
            return self.original(self.module, *args, **kwargs)
        return contrastive_loss(*args)

    def _fits(self, image: Any, text: Any, scale: Any) -> bool:
        """Not in 16 bits outside of autocast, where the module would give 16 bits, nor where it may gather what other
        processes have."""
        tensors, autocast = (image, text, scale), torch.is_autocast_enabled("cpu")
        if not all(isinstance(x, Tensor) and x.is_cpu and (autocast or x.dtype is torch.float32) for x in tensors):
            return False
        if image.dim() != 2 or text.dim() != 2 or image.shape[1] != text.shape[1] or scale.dim():
            return False
        fewer = 1 <= len(image) < len(text) and self.texts == "more"
        if not fewer and not 1 <= len(image) == len(text):
            return False
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        return not distributed and self.plain == _plain(self.module)


def looks_like(module: nn.Module) -> bool:
    """Cheap: the name of the class, and that it holds no tensors and no other modules."""
    name = type(module).__name__.lower()
    return any(part in name for part in _NAMES) and not (module._parameters or module._buffers or module._modules)


def texts_of(module: nn.Module) -> str | None:
    """Texts: "more" or "as many" as images, proved by numbers; None if it computes something else."""
    if not all(isinstance(value, PLAIN_VALUES) or _is_empty(value) for value in own_attributes(module).values()):
        return None
    if not _computes(module, 0):
        return None
    return "more" if _computes(module, _MORE_TEXTS) else "as many"


def _computes(module: nn.Module, more_texts: int) -> bool:
    for training in (True, False):
        for inputs in _probes(more_texts):
            double = copy.deepcopy(module)  # whatever it writes to itself stays there
            double.__dict__.pop("forward", None)
            if not _computes_this(double.train(training), inputs):
                return False
    return True


def _probes(more_texts: int) -> Iterator[list[Tensor]]:
    """image, text, scale: few of any length, whose logits are about 1 at each scale, then many as they are in use."""
    generator = torch.Generator().manual_seed(0)
    kind: Any = {"dtype": torch.float32, "device": "cpu"}
    for scale in _SCALES:
        few = [torch.randn(n, _WIDTH, generator=generator, **kind) for n in (_FEW, _FEW + more_texts)]
        yield [*(x / scale**0.5 for x in few), torch.tensor(scale, **kind)]
    text = torch.randn(_MANY + more_texts, _WIDTH, generator=generator, **kind)
    image = text[:_MANY] + 0.3 * torch.randn(_MANY, _WIDTH, generator=generator, **kind)
    _repeat(image, text)
    yield [F.normalize(image, dim=-1), F.normalize(text, dim=-1), torch.tensor(100.0, **kind)]


def _repeat(image: Tensor, text: Tensor) -> None:
    """Equal and nearly equal ones in place of some: losses are about that leave out what may belong together."""
    texts, images = text.split(8), image.split(8)  # of one alone little may depend
    texts[1][:], images[3][:] = texts[0], images[2]
    texts[5][:], images[5][:] = texts[4], images[4]
    texts[7][:], images[9][:] = texts[6] + 1e-3, images[8] + 1e-3
    text[-_MORE_TEXTS:] = texts[10][:_MORE_TEXTS]  # which are of no image if there are more texts


def _computes_this(module: nn.Module, inputs: list[Tensor]) -> bool:
    """Whether loss and gradients are those of the formula, to rounding: two ways to write it differed by 2e-6 of the
    largest number of a gradient."""
    given, twins = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        try:
            loss = module(*given)
            if not isinstance(loss, Tensor) or loss.dim() or loss.dtype is not torch.float32:
                return False
            found = torch.autograd.grad(loss, given)
        except Exception:  # a probe of unknown code: whatever it raises, it is not what we replace
            return False
        expected = contrastive_loss_reference(*twins)
        wanted = torch.autograd.grad(expected, twins)
    pairs = zip((loss, *found, *given), (expected, *wanted, *inputs), strict=True)
    return all(torch.allclose(x, y, rtol=1e-4, atol=1e-5 * float(y.detach().abs().max())) for x, y in pairs)


def _is_empty(value: Any) -> bool:
    """A place for labels that are kept from call to call: they follow from the sizes."""
    return isinstance(value, (dict, list)) and not value


def _plain(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in own_attributes(module).items() if isinstance(value, PLAIN_VALUES)}
