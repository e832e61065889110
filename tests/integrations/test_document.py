"""The code of docs/integrations.md runs as it stands there, and does what is said below it."""

import copy
import re
from pathlib import Path

import lightning
import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from transformers import LlamaForCausalLM, Trainer

import fullstride

from . import small_llama, small_module
from .test_lightning import Module
from .timm_alone import import_model_ema

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "integrations.md").read_text()
BLOCKS = dict(re.findall(r"^## ([^\n]+)\n+```python\n(.*?)```", DOCUMENT, re.M | re.S))


@pytest.fixture(autouse=True)
def _in_bf16_and_alone(monkeypatch, tmp_path, quiet, one_thread):
    """precision="auto", which the document shows, means bf16; files are written where nobody looks."""
    monkeypatch.setenv("FULLSTRIDE_PRECISION", "bf16")
    monkeypatch.chdir(tmp_path)


def run(heading, **names):
    names |= {"fullstride": fullstride}
    exec(compile(BLOCKS[heading], f"docs/integrations.md: {heading}", "exec"), names)
    return names


def train_step(model, optimizer, batch):
    small_module.loss_of(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def make_net():
    net = small_module.make_net()
    return {"model": net, "optimizer": torch.optim.AdamW(net.parameters(), lr=1e-2)}


def assert_whole(model, weights):
    """These are the weights of the model to the bit, and 16 bits would not have held them."""
    expected = dict(model.named_parameters())
    assert any(not torch.equal(p, p.bfloat16().float()) for p in expected.values())
    assert all(torch.equal(p, weights[name]) for name, p in expected.items())


def assert_exact(saved, model):
    assert_whole(fullstride.restore(model) if model.dtype is torch.bfloat16 else model, saved.state_dict())


def test_every_piece_of_code_is_tried_here():
    tried = set(re.findall(r"    (?:names = )?run\(\n?\s*\"([^\"]+)\"", Path(__file__).read_text()))
    assert tried == set(BLOCKS)
    assert len(BLOCKS) == DOCUMENT.count("```python")


@pytest.mark.parametrize("heading", BLOCKS)
def test_no_piece_of_code_has_more_than_five_lines(heading):
    assert len(BLOCKS[heading].strip().splitlines()) <= 5


@pytest.mark.parametrize("package", ["torch", "transformers", "accelerate", "lightning", "timm"])
def test_the_versions_are_those_that_are_pinned(package):
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert re.search(rf"\b{package} {re.escape(pinned[package])}\b", DOCUMENT)


def test_transformers_trainer():
    model = small_llama.make_model()
    arguments = small_llama.make_arguments("run", save_strategy="no")
    run("transformers.Trainer", model=model, arguments=arguments, data=small_llama.make_data(), Trainer=Trainer)
    assert_exact(LlamaForCausalLM.from_pretrained("my-model"), model)


def test_transformers_in_a_loop():
    model = small_llama.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = [{name: value[None] for name, value in row.items()} for row in small_llama.make_data()[:4]]

    def train_step(model, optimizer, batch):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    run("transformers without its Trainer", model=model, optimizer=optimizer, batches=batches, train_step=train_step)
    assert_exact(LlamaForCausalLM.from_pretrained("my-model"), model)


@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging:UserWarning")
@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`:UserWarning")
def test_lightning():
    module, checkpoints = Module(), ModelCheckpoint("run", filename="last")
    run("Lightning", lightning=lightning, module=module, checkpoints=checkpoints, loader=small_module.make_loader())
    assert_whole(module, torch.load("run/last.ckpt", weights_only=True)["state_dict"])


def test_accelerate():
    accelerator = Accelerator(cpu=True)
    names = run("Accelerate", accelerator=accelerator, loader=small_module.make_loader(), **make_net())
    for batch in names["loader"]:
        accelerator.backward(small_module.loss_of(names["model"], batch))
        names["optimizer"].step()
        names["optimizer"].zero_grad()
    state = accelerator.get_state_dict(names["model"])
    assert_whole(fullstride.restore(accelerator.unwrap_model(names["model"])), state)


def test_timm(monkeypatch):
    seen: list[dict[str, torch.Tensor]] = []

    def train_and_see(model, optimizer, batch):
        if not seen:
            seen.append(copy.deepcopy(model.state_dict()))
        train_step(model, optimizer, batch)
        seen.append(copy.deepcopy(model.state_dict()))

    names = run(
        "timm, or a script like timm's, with EMA", batches=small_module.make_loader(), train_step=train_and_see,
        ModelEmaV3=import_model_ema(monkeypatch).ModelEmaV3, **make_net(),
    )  # fmt: skip
    average = seen[0]["0.weight"]
    for state in seen[1:]:
        average.lerp_(state["0.weight"], 1 - 0.9)
    assert torch.equal(names["model_ema"].module[0].weight, average)
    assert not torch.equal(average, average.bfloat16().float())


class Copies:
    """An average that reads parameters(), with all weight on the last ones."""

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.taken = {name: p.clone() for name, p in model.named_parameters()}


def test_any_other_average():
    model, optimizer = fullstride.prepare(**make_net())
    train_step(model, optimizer, next(iter(small_module.make_loader())))
    names = run("Any other EMA", model=model, ema=Copies())
    assert_whole(fullstride.restore(model), names["ema"].taken)
