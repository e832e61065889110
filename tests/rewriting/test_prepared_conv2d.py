"""Patch embeddings in a prepared model: CLIP of transformers and a ViT as in timm, trained as without prepare()."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import CLIPConfig, CLIPModel

import fullstride
from fullstride.nn.conv2d import Conv2d

pytestmark = pytest.mark.usefixtures("quiet")
IMAGES = torch.randn(6, 3, 64, 64, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randint(2, 98, (6, 9), generator=torch.Generator().manual_seed(2))
TOKENS[:, -1] = 98


def make_clip():
    torch.manual_seed(0)
    layers = {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {
        "vocab_size": 99, "hidden_size": 32, "max_position_embeddings": 16, "eos_token_id": 98, "bos_token_id": 0,
        "pad_token_id": 1,
    }  # fmt: skip
    vision = {"hidden_size": 128, "image_size": 64, "patch_size": 16}
    model = CLIPModel(CLIPConfig(text_config=text | layers, vision_config=vision | layers, projection_dim=24))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def losses(model, optimizer, steps=4):
    found = []
    for _ in range(steps):
        loss = model(input_ids=TOKENS, pixel_values=IMAGES, return_loss=True).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(("precision", "band"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_losses_of_clip_follow_stock_pytorch(precision, band):
    stock = losses(*make_clip())
    model, optimizer = fullstride.prepare(*make_clip(), precision=precision)
    assert losses(model, optimizer) == pytest.approx(stock, rel=band)
    assert stock[-1] < stock[0]
    assert "1 x Conv2d: fullstride.nn.Conv2d (class_swap)" in str(fullstride.explain(model))


def test_clip_multiplies_instead_of_convolving():
    model, optimizer = fullstride.prepare(*make_clip(), precision="fp32")
    text = str(fullstride.explain(model, trace=lambda: losses(model, optimizer, 1)))
    assert "aten::conv2d" not in text
    assert "aten::convolution" not in text


def test_weights_are_split_and_saved_exactly_and_restored():
    model, optimizer = make_clip()
    before = copy.deepcopy(model.state_dict())
    model, optimizer = fullstride.prepare(model, optimizer, precision="bf16")
    layer = model.vision_model.embeddings.patch_embedding
    assert type(layer) is Conv2d
    assert layer.weight.dtype is torch.bfloat16
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    losses(model, optimizer, 2)
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    assert not torch.equal(trained["vision_model.embeddings.patch_embedding.weight"], layer.weight)
    fullstride.restore(model)
    assert type(layer) is nn.Conv2d
    assert all(torch.equal(value, trained[name]) for name, value in model.state_dict().items())


class PatchEmbed(nn.Module):
    """As timm writes it, whose own package would import torchvision."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(3, 128, kernel_size=(16, 16), stride=(16, 16), bias=True)
        self.norm = nn.Identity()

    def forward(self, x):
        return self.norm(self.proj(x).flatten(2).transpose(1, 2))


class Viewing(nn.Module):
    """Code that takes a convolution's result to be dense."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(3, 128, 16, stride=16)
        self.head = nn.Linear(128 * 16, 5)

    def forward(self, x):
        y = self.proj(x)
        flat = y.view(len(x), -1)
        return self.head(flat.view_as(flat) + F.relu(y).view(y.size(0), -1))


class Functional(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(128, 3, 16, 16) / 28)
        self.options = options

    def forward(self, x):
        return F.conv2d(x, self.weight, **self.options).flatten(1)


def compare(make, precision="fp32", images=IMAGES, **options):
    """The model is prepared, after its result and gradients were those of its twin."""
    torch.manual_seed(0)
    stock = make()
    model, _ = fullstride.prepare(copy.deepcopy(stock), precision=precision, **options)
    given, twin = images.clone().requires_grad_(), images.clone().requires_grad_()
    y, expected = model(given), stock(twin)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    y.square().mean().backward()
    expected.square().mean().backward()
    torch.testing.assert_close(given.grad, twin.grad, rtol=1e-4, atol=1e-6)
    for p, q in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    return model


@pytest.mark.parametrize("make", [PatchEmbed, Viewing])
@pytest.mark.parametrize("without", [[], ["function_mode"], ["class_swap"], ["fusion"]], ids=str)
def test_code_around_a_patch_embedding_goes_on_as_it_is(make, without):
    model = compare(make, without=without)
    assert (type(model.proj) is Conv2d) == (without != ["class_swap"])


def test_inside_of_a_model_the_words_are_a_view():
    model, _ = fullstride.prepare(PatchEmbed(), precision="fp32")
    assert model(IMAGES).is_contiguous()  # of a dense result, transposing it would not be


def test_pictures_with_channels_last_are_computed_as_any():
    compare(PatchEmbed, images=IMAGES.contiguous(memory_format=torch.channels_last))


def test_a_picture_without_a_batch_is_computed_as_any():
    compare(lambda: nn.Sequential(nn.Conv2d(3, 128, 16, stride=16)), images=IMAGES.reshape(3, 128, 192))


@pytest.mark.parametrize("mode", [nullcontext(), torch.device("cpu")], ids=["alone", "under another mode"])
def test_outside_of_a_model_the_result_is_dense(mode):
    model, _ = fullstride.prepare(PatchEmbed(), precision="fp32")
    with mode:
        y = model.proj(IMAGES)
    assert y.is_contiguous()
    torch.testing.assert_close(y, F.conv2d(IMAGES, model.proj.weight, model.proj.bias, 16), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"stride": 16}, {"stride": (16, 16), "padding": "valid"}, {"stride": [16], "padding": (0, 0)}], ids=str
)
def test_a_function_call_is_caught(options):
    model = compare(lambda: Functional(**options))
    assert fullstride.explain(model).setting.caught == {"conv2d": 1}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's
@pytest.mark.parametrize(
    "options",
    [{"stride": 8}, {"stride": 16, "padding": 1}, {"stride": 16, "dilation": 2}, {"padding": "same"}],
    ids=str,
)
def test_another_convolution_stays_torchs(options):
    model = compare(lambda: Functional(**options))
    assert "conv2d" not in fullstride.explain(model).setting.caught


def test_it_compiles():
    torch.manual_seed(0)
    model, _ = fullstride.prepare(PatchEmbed(), precision="fp32")
    compiled = torch.compile(model.proj, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(IMAGES), model.proj(IMAGES), rtol=1e-4, atol=1e-5)


def test_it_runs_again_under_a_checkpoint():
    class Checkpointed(PatchEmbed):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    compare(Checkpointed)
