"""The plain model: what a caption's padding, wrong captions, chunks and the temperature do to it."""

import math

import pytest
import torch
import torch.nn.functional as F

from fullstride.models import clip

SHAPE = {
    "vocabulary": 20, "image": 16, "patch": 8, "vision_width": 16, "vision_layers": 2, "vision_heads": 2,
    "context": 9, "text_width": 12, "text_layers": 2, "text_heads": 3, "space": 8,
}  # fmt: skip
END = 19


@pytest.fixture
def model():
    torch.manual_seed(0)
    return clip.build(**SHAPE)


def tokens_of(*lengths, width=9):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.full((len(lengths), width), END)
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = torch.randint(0, END, (length,), generator=generator)
    return tokens


def images_of(count):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(2))


def gradients(model, tokens, images, seed=0):
    model.zero_grad()
    torch.manual_seed(seed)
    loss = clip.loss(model, (tokens, images))
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def test_base_has_about_77_million_parameters():
    with torch.device("meta"):
        model = clip.CLIP(1024, 224, 16, 640, 12, 10, 77, 448, 6, 7, 512)
    assert 75e6 < sum(p.numel() for p in model.parameters()) < 79e6


def test_a_caption_is_the_same_whatever_follows_its_end(model):
    tokens = tokens_of(3, 5)
    expected = model.text(tokens)
    other = tokens.clone()
    other[:, 7:] = 4
    torch.testing.assert_close(model.text(tokens[:, :6]), expected)
    torch.testing.assert_close(model.text(other), expected)


def test_an_end_token_of_ones_own_is_where_a_caption_ends():
    torch.manual_seed(0)
    model = clip.build(**SHAPE, end=2)
    tokens = torch.tensor([[1, 5, 2, 2], [1, 5, 2, 7]])
    first, second = model.text(tokens)
    torch.testing.assert_close(first, second)


def test_the_loss_is_that_of_the_formula(model):
    tokens, images = tokens_of(2, 3, 4), images_of(3)
    image, text = clip.encode_images(model, images), clip.encode_texts(model, tokens)
    logits = image @ text.t() / clip.START
    rows = [-torch.log_softmax(logits, 1)[i, i] for i in range(3)]
    columns = [-torch.log_softmax(logits, 0)[i, i] for i in range(3)]
    torch.testing.assert_close(clip.loss(model, (tokens, images)), (sum(rows) + sum(columns)) / 6)


def test_wrong_captions_count_among_the_captions_of_a_picture_and_not_the_other_way(model):
    tokens, images = tokens_of(2, 3, 4, 5, 6), images_of(3)
    image, text = clip.encode_images(model, images), clip.encode_texts(model, tokens)
    logits, targets = image @ text.t() / clip.START, torch.arange(3)
    expected = (F.cross_entropy(logits, targets) + F.cross_entropy(logits[:, :3].t(), targets)) / 2
    torch.testing.assert_close(clip.loss(model, (tokens, images)), expected)


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
def test_chunks_give_the_loss_and_the_gradients_of_the_whole_batch(model, chunk):
    tokens, images = tokens_of(*(2 + i % 6 for i in range(13))), images_of(10)
    loss, expected = gradients(model, tokens, images)
    model.chunk = chunk
    again, found = gradients(model, tokens, images)
    torch.testing.assert_close(again, loss)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def test_dropout_in_chunks_is_that_of_the_first_time():
    torch.manual_seed(0)
    model = clip.build(**SHAPE, dropout=0.3)
    tokens, images = tokens_of(*(2 + i % 6 for i in range(6))), images_of(6)
    model.zero_grad()
    torch.manual_seed(3)
    image = F.normalize(torch.cat([model.vision(part) for part in images.split(2)]), dim=-1)
    text = F.normalize(torch.cat([model.text(part) for part in tokens.split(2)]), dim=-1)
    loss = model.loss(image, text, model.scale)
    loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.chunk = 2
    again, found = gradients(model, tokens, images, seed=3)
    torch.testing.assert_close(again, loss.detach())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_the_temperature_starts_at_007_and_is_never_below_001(model):
    assert model.scale.item() == pytest.approx(1 / 0.07)
    with torch.no_grad():
        model.log_scale.fill_(math.log(5000.0))
    assert model.scale.item() == pytest.approx(100.0)
    clip.loss(model, (tokens_of(2, 3), images_of(2))).backward()
    assert model.log_scale.grad != 0  # or it would stay there for good
    assert model.log_scale.item() == pytest.approx(math.log(100.0))


def test_quick_gelu_is_another_model_than_gelu():
    torch.manual_seed(0)
    exact = clip.build(**SHAPE)
    quick = clip.build(**SHAPE, activation="quick_gelu")
    quick.load_state_dict(exact.state_dict())
    images = images_of(2)
    a, b = exact.vision(images), quick.vision(images)
    assert not torch.equal(a, b)
    torch.testing.assert_close(a, b, rtol=0.1, atol=0.05)
