"""contrastive(): the loss and the gradients of the whole batch, with the memory of a chunk."""

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import CLIPConfig, CLIPModel

import fullstride
from fullstride.ops.contrastive_loss import contrastive_loss_reference

PAIRS, CHUNK = 37, 8
IMAGES = torch.randn(PAIRS, 12, generator=torch.Generator().manual_seed(1))
TEXTS = torch.randn(PAIRS + 5, 9, generator=torch.Generator().manual_seed(2))


class Encoders(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.image = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 7))
        self.text = nn.Sequential(nn.Linear(9, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 7))
        self.log_scale = nn.Parameter(torch.tensor(1.5))


def gradients(model, loss):
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


def assert_same(model, loss, expected, rtol=1e-5, atol=1e-6):
    torch.testing.assert_close(loss, expected, rtol=rtol, atol=atol)
    ours, theirs = gradients(model, loss), gradients(model, expected)
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def direct(model, images=IMAGES, texts=TEXTS, normalise=True):
    """All at once, in plain torch."""
    image, text = model.image(images), model.text(texts)
    if normalise:
        image, text = F.normalize(image, dim=-1), F.normalize(text, dim=-1)
    return contrastive_loss_reference(image, text, model.log_scale.exp())


def in_chunks(model, chunk=CHUNK, images=IMAGES, texts=TEXTS, **options):
    return fullstride.contrastive(model.image, model.text, images, texts, model.log_scale.exp(), chunk, **options)


@pytest.mark.parametrize("num_texts", [PAIRS, PAIRS + 5])
@pytest.mark.parametrize("chunk", [1, CHUNK, PAIRS, 100])
def test_loss_and_gradients_are_those_of_the_whole_batch(chunk, num_texts):
    model = Encoders()
    assert_same(model, in_chunks(model, chunk, texts=TEXTS[:num_texts]), direct(model, texts=TEXTS[:num_texts]))


def test_vectors_are_taken_as_they_are_if_told_so():
    model = Encoders()
    assert_same(model, in_chunks(model, normalise=False), direct(model, normalise=False))


def test_gradients_reach_what_the_encoders_were_given():
    model, images, twin = Encoders(), IMAGES.clone().requires_grad_(), IMAGES.clone().requires_grad_()
    in_chunks(model, images=images).backward()
    direct(model, images=twin).backward()
    torch.testing.assert_close(images.grad, twin.grad)


def test_fp64_stays_fp64():
    model = Encoders().double()
    loss = in_chunks(model, images=IMAGES.double(), texts=TEXTS.double())
    assert loss.dtype is torch.float64
    assert_same(model, loss, direct(model, IMAGES.double(), TEXTS.double()), rtol=1e-12, atol=1e-12)


def test_dropout_drops_the_same_in_the_second_computation():
    model = Encoders(dropout=0.5)
    torch.manual_seed(7)
    loss = in_chunks(model)
    after = torch.get_rng_state()
    torch.manual_seed(7)
    image = torch.cat([model.image(part) for part in IMAGES.split(CHUNK)])
    text = torch.cat([model.text(part) for part in TEXTS.split(CHUNK)])
    assert torch.equal(torch.get_rng_state(), after)
    expected = contrastive_loss_reference(F.normalize(image), F.normalize(text), model.log_scale.exp())
    assert_same(model, loss, expected)
    assert torch.equal(torch.get_rng_state(), after)  # backward drew no numbers


def test_each_chunk_keeps_nothing_and_is_computed_once_more():
    model, seen = Encoders(), []
    model.image.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    loss = in_chunks(model)
    assert seen == [8, 8, 8, 8, 5]
    loss.backward()
    assert seen[5:] == [5, 8, 8, 8, 8]


@pytest.mark.parametrize("why", ["no gradient", "one chunk"])
def test_nothing_is_computed_twice_where_nothing_is_saved_by_it(why):
    model, seen = Encoders(), []
    model.image.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    if why == "no gradient":
        with torch.no_grad():
            loss = in_chunks(model)
        assert not loss.requires_grad
        torch.testing.assert_close(loss, direct(model).detach())
        assert seen[:-1] == [8, 8, 8, 8, 5]
    else:
        in_chunks(model, chunk=PAIRS).backward()
        assert seen == [PAIRS]


def test_an_encoder_that_does_not_learn_is_not_computed_twice():
    model, seen = Encoders(), []
    model.image.requires_grad_(False)
    model.image.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    in_chunks(model).backward()
    assert len(seen) == 5
    assert next(model.text.parameters()).grad.any()


def test_tuples_are_positional_and_dicts_are_named_arguments():
    model = Encoders()

    def scaled(x, factor):
        return model.image(x * factor[:, None])

    def masked(tokens, attention_mask):
        return model.text(tokens * attention_mask)

    factor, mask = torch.rand(PAIRS) + 0.5, (torch.rand(TEXTS.shape) > 0.3).float()
    loss = fullstride.contrastive(
        scaled, masked, (IMAGES, factor), {"attention_mask": mask, "tokens": TEXTS}, model.log_scale.exp(), CHUNK
    )
    assert_same(model, loss, direct(model, IMAGES * factor[:, None], TEXTS * mask))


@pytest.mark.parametrize("scale", [4.0, torch.tensor(4.0), torch.tensor([4.0])], ids=["number", "tensor", "one row"])
def test_the_scale_may_be_a_number(scale):
    model = Encoders()
    loss = fullstride.contrastive(model.image, model.text, IMAGES, TEXTS, scale, CHUNK)
    image, text = F.normalize(model.image(IMAGES)), F.normalize(model.text(TEXTS))
    torch.testing.assert_close(loss, contrastive_loss_reference(image, text, torch.tensor(4.0)))


def make_clip():
    torch.manual_seed(0)
    layers = {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "attention_dropout": 0.0}
    text = {
        "vocab_size": 99, "hidden_size": 32, "max_position_embeddings": 16, "eos_token_id": 98, "bos_token_id": 0,
        "pad_token_id": 1,
    }  # fmt: skip
    vision = {"hidden_size": 128, "image_size": 64, "patch_size": 16}
    return CLIPModel(CLIPConfig(text_config=text | layers, vision_config=vision | layers, projection_dim=24))


PIXELS = torch.randn(10, 3, 64, 64, generator=torch.Generator().manual_seed(3))
TOKENS = torch.randint(2, 98, (10, 9), generator=torch.Generator().manual_seed(4))
TOKENS[:, -1] = 98


def loss_of_clip(model, chunk):
    return fullstride.contrastive(
        lambda x: model.get_image_features(pixel_values=x).pooler_output,
        lambda input_ids, attention_mask: model.get_text_features(input_ids, attention_mask).pooler_output,
        PIXELS,
        {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)},
        model.logit_scale.exp(),
        chunk,
    )


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("precision", "band"), [("fp32", 1e-4), ("bf16", 0.05)])
def test_a_prepared_model_is_encoded_in_chunks(precision, band):
    stock = make_clip()
    expected = stock(input_ids=TOKENS, pixel_values=PIXELS, return_loss=True).loss
    wanted = gradients(stock, expected)
    model = copy.deepcopy(stock)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = fullstride.prepare(model, optimizer, precision=precision)
    loss = loss_of_clip(model, chunk=4)
    assert loss.dtype is torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=band)
    found = gradients(model, loss)
    for name, gradient in wanted.items():
        if not name.endswith("k_proj.bias"):  # which is 0 but for rounding
            assert (found[name].float() - gradient).norm() <= band * gradient.norm() + 1e-7, name


@pytest.mark.usefixtures("quiet")
def test_a_prepared_model_learns_in_chunks_as_all_at_once():
    losses = []
    for chunk in (4, 10):
        model = make_clip()
        model, optimizer = fullstride.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4), precision="bf16")
        seen = []
        for _ in range(4):
            loss = loss_of_clip(model, chunk)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.item())
        losses.append(seen)
        fullstride.restore(model)
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
    assert losses[0][-1] < losses[0][0]


MEASURE = """
import sys
import torch
from torch import nn
import fullstride
from fullstride.machine.memory import peak_bytes, resident_bytes

torch.set_num_threads(1)
encoder = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))))
head = nn.Linear(64, 16)

def run(pairs, chunk):
    x = torch.randn(pairs, 48, 64)
    encode = lambda x: head(encoder(x).mean(1))
    fullstride.contrastive(encode, encode, x, x.flip(1), torch.tensor(5.0), chunk).backward()

run(2, 2)
before = resident_bytes()
run(256, int(sys.argv[1]))
print(peak_bytes() - before)
"""


def test_memory_is_that_of_a_chunk():
    def added(chunk):
        done = subprocess.run([sys.executable, "-c", MEASURE, str(chunk)], capture_output=True, text=True, check=True)
        return int(done.stdout)

    whole, chunked = added(256), added(16)
    # 2 x 8 layers x 256 x 48 rows of 256 + 256 + 64 numbers, of which a chunk is a sixteenth
    assert whole > 300 << 20
    assert chunked < whole / 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"chunk": 0}, "expected chunk to be a whole number above 0, got 0"),
        ({"chunk": 2.5}, "expected chunk to be a whole number above 0, got 2.5"),
        ({"scale": "2"}, "expected scale to be a number or a tensor of one number, got '2'"),
        ({"scale": None}, "expected scale to be a number or a tensor of one number, got None"),
        ({"scale": torch.ones(2)}, r"expected scale to be .* a tensor of one number, got torch.float32 \(2,\)"),
        ({"texts": TEXTS[:5]}, "got 37 images and 5 texts; the first texts belong to the images"),
        ({"images": IMAGES[:0]}, "expected one image or more and a text for each, got 0 images"),
        ({"images": (IMAGES, IMAGES[:3])}, r"of one length in images, got 37 in images\[0\], 3 in images\[1\]"),
        ({"texts": {"ids": TEXTS, "mask": TEXTS[:4]}}, r"got 42 in texts\['ids'\], 4 in texts\['mask'\]"),
        ({"texts": {"ids": TEXTS, "kind": "text"}}, r"tuple or dict of tensors.*got dict with str in \['kind'\]"),
        ({"images": "a picture"}, "expected images to be a tensor, .* got str"),
        ({"images": ()}, "expected images to be a tensor, .* got tuple"),
        ({"images": torch.tensor(1.0)}, "got Tensor with a single number"),
        ({"encode_image": lambda x: x[0]}, r"encode_image to give vectors \(8, E\) .* got torch.float32 \(12,\)"),
        ({"encode_text": lambda x: x[:3]}, r"encode_text to give vectors \(8, E\) .* got torch.float32 \(3, 9\)"),
        ({"encode_text": lambda x: (x, x)}, "got tuple; wrap it in a function that returns that tensor"),
        ({"encode_text": lambda x: x}, "vectors of one width, got 7 from encode_image and 9 from encode_text"),
        ({"encode_image": lambda x: x[:, : len(x)]}, r"encode_image to give vectors of one width, got \[5, 8\]"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(change, said):
    model = Encoders()
    given = {
        "encode_image": model.image, "encode_text": model.text, "images": IMAGES, "texts": TEXTS, "scale": 2.0,
        "chunk": CHUNK,
    }  # fmt: skip
    with pytest.raises(ValueError, match=said) as error:
        fullstride.contrastive(**(given | change))
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("quiet")
def test_the_example_of_the_page_runs():
    page = (Path(__file__).parents[1] / "docs" / "using.md").read_text()
    section = page.split("## Large contrastive batches", 1)[1].split("\n## ", 1)[0]
    [code] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    model, _ = fullstride.prepare(make_clip(), precision="fp32")
    texts = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    names = {"fullstride": fullstride, "model": model, "images": PIXELS, "texts": texts}
    exec(code, names)
    assert model.vision_model.embeddings.patch_embedding.weight.grad.any()
    torch.testing.assert_close(names["loss"], loss_of_clip(model, 10))
