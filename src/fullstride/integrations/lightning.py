"""Lightning's Trainer, made fast for as long as its fit() runs.

    Trainer(callbacks=[Prepare()]).fit(module, loader)

prepare() comes when the module is loaded and has its optimizer, and before the state of the optimizer is loaded. After
fit() the module is an ordinary one again, also if fit() was interrupted. Strategy, precision, loops stay Lightning's.
"""

from collections.abc import Callable
from typing import Any

from ..preparation import check_options, explain, is_prepared, prepare, restore
from ..rewriting.whole_weights import whole_weights

try:
    from lightning.pytorch.callbacks import Callback, StochasticWeightAveraging, WeightAveraging
except ImportError as error:
    raise ImportError(
        f"fullstride.integrations.lightning: expected lightning, got: {error}; pip install lightning"
    ) from None

_AVERAGING = ("_swap_models", "_copy_average_to_current", "update_parameters", "transfer_weights")
"""Methods of WeightAveraging and of StochasticWeightAveraging that read or write parameters()."""


class Prepare(Callback):
    """The module and its optimizer are prepared while fit() runs. The options are those of fullstride.prepare()."""

    def __init__(self, **options: Any) -> None:
        check_options(**options)
        self.options = options
        self._undo: list[Callable[[], object]] = []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and trainer.precision != "32-true":  # now: the weights are rounded after this
            raise ValueError(
                f'Prepare: expected a Trainer with precision="32-true", its default, got {trainer.precision!r};'
                " leave it out there and pass precision= here"
            )

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        strategy = trainer.strategy
        if strategy.model is not pl_module:
            raise ValueError(
                f"Prepare: expected one process, got {type(strategy).__name__}, which wrapped the module already"
            )
        if len(strategy.optimizers) != 1:
            raise ValueError(
                f"Prepare: expected one optimizer, got {len(strategy.optimizers)};"
                " call fullstride.prepare() for each part in configure_optimizers() instead"
            )
        prepare(pl_module, strategy.optimizers[0], **self.options)
        self._undo = [lambda: restore(pl_module) if is_prepared(pl_module) else None]
        if explain(pl_module).precision == "fp16" and trainer.gradient_clip_algorithm == "value":
            # An infinity would become a large number, and nobody would learn that the loss scale is too high.
            raise ValueError(
                'Prepare: expected gradient_clip_algorithm="norm" in fp16, got "value", which hides overflow;'
                " clip the norm, or train in bf16"
            )
        strategy.optimizers = strategy.optimizers  # its wrappers imitate a class, and that has changed
        for callback in trainer.callbacks:
            if isinstance(callback, WeightAveraging | StochasticWeightAveraging):
                for name in _AVERAGING:
                    if hasattr(callback, name):
                        self._let_read_whole_weights(callback, name, pl_module)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        optimizer.unscale_()  # in fp16: Lightning clips after this, and modules look at gradients

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        while self._undo:
            self._undo.pop()()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.on_fit_end(trainer, pl_module)

    def _let_read_whole_weights(self, callback: Any, name: str, module: Any) -> None:
        original = getattr(callback, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            with whole_weights(module):
                return original(*args, **kwargs)

        setattr(callback, name, method)
        self._undo.append(lambda: vars(callback).pop(name, None))
