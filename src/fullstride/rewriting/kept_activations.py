"""What forward keeps for backward, in bf16: prepare(activations="bf16"). Products and weights stay fp32.

Rounded is what carries a gradient: fp32 tensors in the graph, of MIN_ELEMENTS or more. An element is off by at most
2^-8 of itself; zero stays zero, and no sign changes. Kept as it is:

- what carries none: statistics of norms and attention, masks, tables, integers, the model's input;
- parameters and views of them, which live anyway;
- tensors of one dimension and one number a row, [..., 1]: statistics that a model computes itself;
- results whose derivative subtracts them from one or takes their exponential (EXACT): no share bounds the error there;
- what a function keeps whose derivative can be off by any multiple of a rounding (AMPLIFYING), such as sin(300 x);
- what a loss inside of the model compares (LOSSES): the difference may be smaller than the rounding.

Derivatives of other functions are off by a few roundings: that of log by one, 1/x by two, rsqrt by three, of pow by
its exponent less one, which is three at most (_is_steep). Norms and x.var() subtract the mean: times mean / deviation.

A tensor that several nodes keep, be it as views, is rounded once. Memory that the graph holds exactly anyway is not
copied; of a small part of an activation the part alone is held. A copy has the values of its moment: later writes in
place do not reach it. What is kept as it is raises after such a write, as in torch. Hooks of others around the model
(torch.utils.checkpoint, save_on_cpu) are handed what is kept here, rounded or not. Hooks inside of the model come
first: what they keep is theirs.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from ..ops import vector_math
from ..ops._tensors import is_dense
from ..ops.convert import to_bf16, to_float

MIN_ELEMENTS = 4096
"""Fewer are not worth the calls."""
EXACT = frozenset(
    f"{name}Backward0" for name in ("Tanh", "Sigmoid", "LogSoftmax", "Logsumexp", "Logcumsumexp", "MkldnnRnnLayer")
) | {"VectorFunctionBackward"}  # ops.vector_math
"""Nodes whose results stay as they are."""
LOSSES: frozenset[Any] = frozenset({
    F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div, F.binary_cross_entropy, F.poisson_nll_loss,
    F.gaussian_nll_loss, F.binary_cross_entropy_with_logits, F.cosine_embedding_loss, F.triplet_margin_loss,
    F.margin_ranking_loss, F.nll_loss, F.cross_entropy, F.ctc_loss,
})  # fmt: skip
_STEEP = (
    "sin", "cos", "sinc", "sinh", "cosh", "asin", "arcsin", "acos", "arccos", "atanh", "arctanh", "acosh", "arccosh",
    "log1p", "expm1", "logit", "erfinv", "erfcx", "ndtri", "log_ndtr", "entr", "xlogy", "xlog1py",
    "i0", "i0e", "i1", "i1e", "lgamma", "gammaln", "digamma", "psi", "polygamma", "mvlgamma", "multigammaln",
    "logsumexp", "logcumsumexp", "logaddexp", "logaddexp2", "dist", "cdist",
    "inv", "inverse", "pinv", "pinverse", "det", "logdet", "slogdet", "cholesky", "cholesky_solve", "qr", "svd", "eig",
    "eigh", "eigvals", "eigvalsh", "solve", "solve_triangular", "lstsq", "lu", "lu_solve", "matrix_exp",
)  # fmt: skip


def _named(*names: str) -> frozenset[Any]:
    """Functions of torch and methods of tensors, in place too."""
    places = (torch, Tensor, torch.special, torch.linalg)
    found = {getattr(place, name + end, None) for place in places for name in names for end in ("", "_")}
    return frozenset(found - {None})


AMPLIFYING = _named(*_STEEP) | {vector_math.sin, vector_math.cos}
"""Their derivatives have poles, waves or tails in what they keep, or subtract it."""
_POWERS = _named("pow", "float_power", "__pow__", "__ipow__")

_Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]
_autograd: Any = torch._C._autograd


@contextmanager
def kept_as_bf16() -> Iterator[None]:
    """Around a forward. Nothing happens where nothing is kept, and where torch takes no hooks (torch.func)."""
    if not torch.is_grad_enabled() or not _autograd._saved_tensors_hooks_is_enabled():
        yield
        return
    keeper = _Keeper(_autograd._top_saved_tensors_default_hooks(True))
    with _Watch(keeper), torch.autograd.graph.saved_tensors_hooks(keeper.pack, _unpack):
        yield


class _Watch(TorchFunctionMode):
    """While a loss or a function that amplifies is computed, the keeper rounds nothing."""

    def __init__(self, keeper: "_Keeper") -> None:
        super().__init__()
        self._keeper = keeper

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in LOSSES and func not in AMPLIFYING and not (func in _POWERS and _is_steep(*args[1:2], **kwargs)):
            return func(*args, **kwargs)
        self._keeper.is_exact = True
        try:
            return func(*args, **kwargs)
        finally:
            self._keeper.is_exact = False


def _is_steep(exponent: Any = None, **_: Any) -> bool:
    return not isinstance(exponent, (int, float)) or not -2 <= exponent <= 4


class _Keeper:
    """What one forward keeps. outer: the hooks of others around it.

    What is rounded does not depend on outer: the trainer looks at the memory of one step by such hooks.
    """

    def __init__(self, outer: _Hooks | None) -> None:
        self.is_exact = False
        self._outer = outer
        self._rounded: dict[Any, weakref.ref[Tensor]] = {}  # by memory and version; the graph holds them
        self._exact: set[int] = set()  # storages that the graph holds as they are
        self._storages: dict[int, StorageWeakRef] = {}  # so that no other takes the address of one that is gone

    def pack(self, x: Tensor) -> Callable[[], Tensor]:
        with torch._C.DisableTorchFunction():
            if not _is_plain(x):
                return self._as_it_is(x)
            storage = StorageWeakRef(x.untyped_storage())
            address = self._storages.setdefault(storage.cdata, storage).cdata
            if not self.is_exact and address not in self._exact and _is_rounded(x):
                return self._as_bf16(x, address)
            if _is_part(x) and address not in self._exact:  # which would hold all of a tensor that may be rounded
                return self._as_it_is(x.detach().clone())
            self._exact.add(address)
            return self._as_it_is(x)

    def _as_it_is(self, x: Tensor) -> Callable[[], Tensor]:
        if self._outer is not None:
            return partial(self._outer[1], self._outer[0](x))
        # Not x itself: an output would hold the node that holds it, and neither would ever be freed.
        return partial(_unchanged, x.detach(), x._version)

    def _as_bf16(self, x: Tensor, address: int) -> Callable[[], Tensor]:
        dense = is_dense(x)
        view = (x.shape, x.stride())
        key = (address, x.storage_offset(), x._version, x.numel() if dense else view)
        reference = self._rounded.get(key)
        rounded = None if reference is None else reference()
        if rounded is None:
            # Of a dense tensor the stretch of memory that it fills: a view of it is a view of that.
            flat = x.detach().as_strided((x.numel(),), (1,)) if dense else x.detach().contiguous()
            rounded = to_bf16(flat)
            self._rounded[key] = weakref.ref(rounded)
        kept = rounded if self._outer is None else self._outer[0](rounded)
        return partial(_widened, kept, None if self._outer is None else self._outer[1], view if dense else None)


def _is_plain(x: Tensor) -> bool:
    return type(x) in (Tensor, torch.nn.Parameter) and x.is_cpu and x.layout is torch.strided


def _is_rounded(x: Tensor) -> bool:
    """By what is known of it alone."""
    if x.dtype is not torch.float32 or x.is_leaf or x.numel() < MIN_ELEMENTS or x.dim() < 2 or x.shape[-1] == 1:
        return False
    if _shows_parameter(x) or x.is_neg() or type(x.grad_fn).__name__ in EXACT:
        return False
    return 0 not in x.stride() and 2 * x.numel() < x.untyped_storage().nbytes()  # or the copy may be the larger one


def _is_part(x: Tensor) -> bool:
    """Of an activation, half of its memory at most."""
    return not x.is_leaf and not _shows_parameter(x) and 2 * x.nbytes <= x.untyped_storage().nbytes()


def _shows_parameter(x: Tensor) -> bool:
    base = x._base if x._is_view() else None
    return base is not None and base.is_leaf and base.requires_grad  # a Function's output may be a view of other leaves


def _unpack(kept: Callable[[], Tensor]) -> Tensor:
    return kept()


def _unchanged(x: Tensor, version: int) -> Tensor:
    if x._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor"
            f" of {x.dtype} {list(x.shape)} is at version {x._version}; expected version {version} instead. Change it"
            " after backward, or change a copy"
        )
    return x


def _widened(kept: Any, unpack: Callable[[Any], Tensor] | None, view: tuple[Any, Any] | None) -> Tensor:
    wide = to_float(kept if unpack is None else unpack(kept))
    return wide if view is None else wide.as_strided(*view)
