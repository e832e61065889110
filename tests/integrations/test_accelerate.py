"""Accelerate around a prepared pair: accumulation, clipping, saved and loaded state. It needs no helper."""

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch.optim.lr_scheduler import StepLR

import fullstride

from ..language_model import PRECISIONS
from .small_module import NUM_BATCHES, loss_of, make_loader, make_net

pytestmark = pytest.mark.usefixtures("quiet", "one_thread")
BANDS = {"fp32": 1e-5, "bf16": 2e-2}


class Script:
    """A training script as Accelerate's documents write it; with `precision`, prepare() comes first."""

    def __init__(
        self, precision=None, accumulation=1, clip=None, seed=0, clip_in_step=None, kind=torch.optim.AdamW, lr=1e-2
    ):
        self.accelerator = Accelerator(gradient_accumulation_steps=accumulation, cpu=True)
        net = make_net(seed)
        optimizer = kind(net.parameters(), lr=lr)
        schedule = StepLR(optimizer, NUM_BATCHES, 0.5)
        if precision is not None:
            net, optimizer = fullstride.prepare(net, optimizer, precision=precision, clip=clip_in_step, threads=1)
        parts = self.accelerator.prepare(net, optimizer, make_loader(), schedule)
        self.net, self.optimizer, self.loader, self.schedule = parts
        self.clip = clip

    def train(self, epochs):
        losses = []
        for batch in [batch for _ in range(epochs) for batch in self.loader]:
            with self.accelerator.accumulate(self.net):
                loss = loss_of(self.net, batch)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients and self.clip:
                    self.accelerator.clip_grad_norm_(self.net.parameters(), self.clip)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


@pytest.mark.parametrize("options", [{}, {"accumulation": 2}, {"clip": 0.1}, {"accumulation": 2, "clip": 0.1}], ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_losses_are_those_of_accelerate_alone(precision, options):
    expected = Script(**options).train(3)
    assert Script(precision, **options).train(3) == pytest.approx(expected, abs=BANDS[precision], rel=0)


def test_clipped_losses_in_fp16_are_those_of_accelerate_alone():
    """With SGD, whose steps are as long as its gradients; the document says to clip in the step."""
    losses = []
    for options in ({"precision": "fp16", "clip_in_step": 0.1}, {"clip": 0.1}):
        losses.append(Script(**options, kind=torch.optim.SGD, lr=0.5).train(3))
    assert losses[0] == pytest.approx(losses[1], abs=BANDS["bf16"], rel=0)
    assert min(losses[1]) < losses[1][0] - 5 * BANDS["bf16"]  # or steps of no length would do


def test_accumulation_and_clipping_have_work_to_do_in_these_tests():
    plain = Script().train(3)
    assert all(Script(**options).train(3)[-1] != plain[-1] for options in ({"accumulation": 2}, {"clip": 0.1}))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_loaded_state_goes_on_bitwise(precision, tmp_path):
    script = Script(precision, accumulation=2, clip=0.1)
    script.train(2)
    script.accelerator.save_state(tmp_path)
    expected = script.train(2)
    other = Script(precision, accumulation=2, clip=0.1, seed=1)
    other.accelerator.load_state(tmp_path)
    assert other.train(2) == expected
    weights = script.net.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in other.net.state_dict().items())


def test_what_is_saved_from_a_bf16_run_is_what_restore_gives(tmp_path):
    script = Script("bf16")
    script.train(2)
    script.accelerator.save_state(tmp_path / "state")
    script.accelerator.save_model(script.net, tmp_path / "model")
    assert script.net[0].weight.dtype is torch.bfloat16
    net = fullstride.restore(script.accelerator.unwrap_model(script.net))
    assert not torch.equal(net[0].weight, net[0].weight.bfloat16().float())
    for folder in ("state", "model"):
        saved = load_file(tmp_path / folder / "model.safetensors")
        assert saved.keys() == net.state_dict().keys()
        assert all(torch.equal(value, saved[name]) for name, value in net.state_dict().items())
