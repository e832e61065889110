"""Lightning's Trainer with the callback Prepare(): its own losses, exact checkpoints, exact resume."""

import os

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins.precision import Precision
from torch import nn

import fullstride
from fullstride.integrations.lightning import Prepare
from fullstride.preparation import is_prepared

from ..language_model import PRECISIONS
from .small_module import NUM_BATCHES, loss_of, make_loader, make_net

pytestmark = [
    pytest.mark.usefixtures("quiet", "one_thread"),
    # Lightning 2.6.6 asks for a class that torch 2.13 has renamed.
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
    # Its advice about loaders, and that a run which goes on finds its own checkpoints.
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning"),
]
BANDS = {"fp32": 1e-5, "bf16": 2e-2}
EPOCHS = 3


class Module(lightning.LightningModule):
    def __init__(self, seed=0):
        super().__init__()
        self.net = make_net(seed)
        self.losses = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        loss = loss_of(self, batch)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        self.log("validation", loss_of(self, batch))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def make_trainer(callbacks=(), **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    quiet["enable_checkpointing"] = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    return lightning.Trainer(max_epochs=options.pop("max_epochs", EPOCHS), callbacks=[*callbacks], **quiet, **options)


def fast(precision="bf16", **options):
    return Prepare(precision=precision, threads=1, **options)


def fitted(callbacks=(), module=None, ckpt_path=None, **options):
    module = Module() if module is None else module
    make_trainer(callbacks, **options).fit(module, make_loader(), make_loader(), ckpt_path=ckpt_path)
    return module


def saver(folder):
    return ModelCheckpoint(folder, filename="{step}", save_top_k=-1, auto_insert_metric_name=False)


def assert_same(module, weights):
    state = module.state_dict()
    assert state.keys() == weights.keys()
    for name, value in weights.items():
        assert value.dtype is state[name].dtype
        assert torch.equal(value, state[name]), name


class Look(Callback):
    """Keeps what a function finds after each batch, while the module is prepared."""

    def __init__(self, find):
        self.find, self.found = find, []

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.found.append(self.find(pl_module))


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.1}], ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_losses_are_those_of_lightning_alone(precision, options):
    stock, ours = fitted(**options), fitted([fast(precision)], **options)
    assert len(stock.losses) == EPOCHS * NUM_BATCHES
    assert ours.losses == pytest.approx(stock.losses, abs=BANDS[precision], rel=0)


class WithSGD(Module):
    """Whose steps are as long as its gradients, where Adam's would hide that they were clipped too much."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}], ids=str)
def test_clipped_losses_in_fp16_are_those_of_lightning_alone(options):
    options = {**options, "gradient_clip_val": 0.1}
    stock, ours = fitted(module=WithSGD(), **options), fitted([fast("fp16")], WithSGD(), **options)
    assert ours.losses == pytest.approx(stock.losses, abs=BANDS["bf16"], rel=0)
    assert min(stock.losses) < stock.losses[0] - 5 * BANDS["bf16"]  # or steps of no length would do


def test_clipping_values_in_fp16_is_refused_in_one_line():
    module = Module()
    with pytest.raises(ValueError, match='expected gradient_clip_algorithm="norm" in fp16, got "value"') as caught:
        fitted([fast("fp16")], module, gradient_clip_val=0.1, gradient_clip_algorithm="value")
    assert "\n" not in str(caught.value)
    assert not is_prepared(module)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_layers_and_optimizer_are_ours_while_fit_runs(precision):
    look = Look(lambda module: (str(fullstride.explain(module)), type(module.optimizers().optimizer)))
    module = fitted([fast(precision), look])
    account, optimizer = look.found[-1]
    assert "2 x Linear: fullstride.nn.Linear" in account
    assert optimizer is fullstride.optim.AdamW
    assert not is_prepared(module)
    assert {p.dtype for p in module.parameters()} == {torch.float32}


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}], ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_resumed_is_as_never_stopped(precision, options, tmp_path):
    whole = fitted([fast(precision), saver(tmp_path)], **options)
    step = NUM_BATCHES // options.get("accumulate_grad_batches", 1)
    other = fitted([fast(precision), saver(tmp_path)], Module(seed=1), tmp_path / f"{step}.ckpt", **options)
    assert other.losses == whole.losses[NUM_BATCHES:]
    assert_same(other, whole.state_dict())


@pytest.mark.parametrize("state_precision", ["bf16", "8bit"])
def test_resumed_with_small_states_is_as_never_stopped(state_precision, tmp_path):
    whole = fitted([fast(state_precision=state_precision), saver(tmp_path)])
    callbacks = [fast(state_precision=state_precision), saver(tmp_path)]
    other = fitted(callbacks, Module(seed=1), tmp_path / f"{NUM_BATCHES}.ckpt")
    assert other.losses == whole.losses[NUM_BATCHES:]
    assert_same(other, whole.state_dict())


def test_checkpoints_of_a_bf16_run_hold_the_exact_fp32_weights(tmp_path):
    module = fitted([fast(), saver(tmp_path)])
    weight = module.net[0].weight
    assert not torch.equal(weight, weight.bfloat16().float())
    saved = torch.load(tmp_path / f"{EPOCHS * NUM_BATCHES}.ckpt", weights_only=True)
    assert_same(module, saved["state_dict"])


def test_the_precision_plugin_is_untouched():
    trainer = make_trainer([fast()])
    trainer.fit(Module(), make_loader(), make_loader())
    assert type(trainer.precision_plugin) is Precision
    assert trainer.precision == "32-true"


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-true"])
def test_another_precision_of_the_trainer_is_refused_in_one_line(precision):
    module = Module()
    with pytest.raises(ValueError, match=f"its default, got '{precision}'; leave it out there") as caught:
        fitted([fast()], module, precision=precision)
    assert "\n" not in str(caught.value)
    assert_same(module, Module().state_dict())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_module_is_fitted_again(precision):
    stock, ours = Module(), Module()
    for _ in range(2):
        fitted([], stock, max_epochs=1)
        fitted([fast(precision)], ours, max_epochs=1)
    assert len(stock.losses) == 2 * NUM_BATCHES
    assert ours.losses == pytest.approx(stock.losses, abs=BANDS[precision], rel=0)


def test_the_module_is_an_ordinary_one_after_an_error():
    class Failing(Module):
        def training_step(self, batch, index):
            if index == 2:
                raise RuntimeError("of the test")
            return super().training_step(batch, index)

    module = Failing()
    with pytest.raises(RuntimeError, match="of the test"):
        fitted([fast()], module)
    assert not is_prepared(module)
    assert {p.dtype for p in module.parameters()} == {torch.float32}


def exact(module):
    return [module.state_dict()[name].clone() for name, _ in module.named_parameters()]


class OnesOwnEMA(EMAWeightAveraging):
    """A user's, whose calls name their arguments."""

    def on_train_end(self, trainer, pl_module):
        self._copy_average_to_current(pl_module=pl_module)


@pytest.mark.parametrize("kind", [EMAWeightAveraging, OnesOwnEMA])
def test_lightnings_ema_is_one_of_whole_weights_also_where_it_is_validated(kind):
    """Its callback puts the average into the module for each validation and at the end, and takes it out again."""
    look = Look(exact)
    module = fitted([kind(decay=0.9), look, fast()])
    average = look.found[0]
    for weights in look.found[1:]:
        for value, p in zip(average, weights, strict=True):
            value.lerp_(p, 0.1)
    for value, p in zip(average, module.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), value, rtol=1e-6, atol=1e-7)


class OnesOwnSWA(StochasticWeightAveraging):
    pass


@pytest.mark.parametrize("kind", [StochasticWeightAveraging, OnesOwnSWA])
def test_lightnings_swa_is_one_of_whole_weights(kind):
    look = Look(exact)
    callbacks = [kind(swa_lrs=1e-2, swa_epoch_start=1, annealing_epochs=1), look, fast()]
    module = Plain()
    taken = [exact(module)]  # at the start of each epoch: that after the last one is not among them
    fitted(callbacks, module, max_epochs=4)
    taken += look.found[NUM_BATCHES - 1 :: NUM_BATCHES][:-1]
    for i, p in enumerate(module.parameters()):
        mean = torch.stack([weights[i] for weights in taken]).mean(0)
        torch.testing.assert_close(p.detach(), mean, rtol=1e-6, atol=1e-7)


class Plain(Module):
    """Without BatchNorm, for which SWA makes one more pass over the data; nor a schedule, which it would replace."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"bogus": 1}, "expected options among precision, .*; got 'bogus'"),
        ({"optimizer": None}, "got 'optimizer'"),
        ({"precision": "bf17"}, "expected precision to be one of auto, fp32, bf16, fp16, got 'bf17'"),
    ],
)
def test_options_are_checked_when_they_are_given(options, expected):
    with pytest.raises((TypeError, ValueError), match=expected) as caught:
        Prepare(**options)
    assert "\n" not in str(caught.value)


def test_several_optimizers_are_refused_in_one_line():
    class Two(Module):
        automatic_optimization = False

        def configure_optimizers(self):
            return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (self.net[0], self.net[3])]

    module = Two()
    with pytest.raises(ValueError, match=r"expected one optimizer, got 2; call fullstride.prepare\(\)"):
        fitted([fast()], module)
    assert not is_prepared(module)


@pytest.fixture
def _no_group_left():
    """What Lightning leaves in the environment would make a distributed run of every later Trainer of the process."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_no_group_left")
def test_a_module_that_is_wrapped_already_is_refused_in_one_line():
    module = Module()
    with pytest.raises(ValueError, match="expected one process, got DDPStrategy, which wrapped the module already"):
        fitted([fast()], module, strategy="ddp", devices=1)
    assert not is_prepared(module)
