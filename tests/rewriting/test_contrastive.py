"""Which contrastive losses are known, and that those compute the same."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullstride
from fullstride.models import clip
from fullstride.rewriting import put_back, rewrite
from fullstride.rewriting.probes.contrastive import NOT_CONTRASTIVE, ContrastiveForward

pytestmark = pytest.mark.usefixtures("quiet")


class ClipLoss(nn.Module):
    """As open_clip writes it: as many texts as images, labels kept for the next call, another kind of result."""

    def __init__(self, smoothing=0.0, limit=float("inf"), share=0.5):
        super().__init__()
        self.smoothing, self.limit, self.share = smoothing, limit, share
        self.labels = {}

    def forward(self, image_features, text_features, logit_scale, output_dict=False):
        logits = logit_scale.clamp(max=self.limit) * image_features @ text_features.T
        if len(logits) not in self.labels:
            self.labels[len(logits)] = torch.arange(len(logits))
        labels = self.labels[len(logits)]
        by_image = F.cross_entropy(logits, labels, label_smoothing=self.smoothing)
        total = (by_image + F.cross_entropy(logits.T, labels, label_smoothing=self.smoothing)) * self.share
        return {"contrastive_loss": total} if output_dict else total


class Normalising(ClipLoss):
    def forward(self, image_features, text_features, logit_scale, output_dict=False):
        return super().forward(F.normalize(image_features), F.normalize(text_features), logit_scale, output_dict)


class TwoProducts(ClipLoss):
    """The same to rounding."""

    def forward(self, image_features, text_features, logit_scale, output_dict=False):
        labels = torch.arange(len(image_features))
        by_image = (image_features @ text_features.T * logit_scale).log_softmax(1)[labels, labels]
        by_text = (text_features @ image_features.T * logit_scale).log_softmax(1)[labels, labels]
        return -(by_image.mean() + by_text.mean()) / 2


class InEval(ClipLoss):
    def forward(self, image_features, text_features, logit_scale, output_dict=False):
        return super().forward(image_features, text_features, logit_scale) * (1 if self.training else 2)


class ClipLossOf(ClipLoss):
    """what: differs from the formula only in batches as they are in use."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, image_features, text_features, logit_scale, output_dict=False):
        logits = logit_scale * image_features @ text_features.T
        labels, is_other = torch.arange(len(logits)), ~torch.eye(len(logits), dtype=torch.bool)
        rows = {
            "texts": text_features, "pictures": image_features, "pairs": torch.cat([image_features, text_features], 1)
        }[self.what.split()[-1]]  # fmt: skip
        is_equal = (rows[:, None] == rows).all(-1)
        if self.what.startswith("no equal"):
            logits = logits.masked_fill(is_equal & is_other, float("-inf"))
        elif self.what.startswith("no similar"):
            cosine = F.normalize(rows, dim=-1) @ F.normalize(rows, dim=-1).T
            logits = logits.masked_fill((cosine > 0.95) & is_other, float("-inf"))
        elif self.what.startswith("no close"):
            logits = logits.masked_fill((torch.cdist(rows, rows) < 0.01) & ~is_equal, float("-inf"))
        losses = [F.cross_entropy(x, labels, reduction="none") for x in (logits, logits.T)]
        if self.what.startswith("hardest"):
            losses = [x.topk(min(64, len(x))).values for x in losses]
        return (losses[0].mean() + losses[1].mean()) / 2


class ContrastiveWithoutKnownTexts(clip.ContrastiveLoss):
    """Of the texts beyond those of the images, those that are not among these."""

    def forward(self, image, text, scale):
        own, others = text[: len(image)], text[len(image) :]
        is_known = (others[:, None] == own).all(-1).any(-1)
        return super().forward(image, torch.cat([own, others[~is_known]]), scale)


class ContrastiveWithWeight(clip.ContrastiveLoss):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))


class Siglip(clip.ContrastiveLoss):
    """Of another name: nobody asks it."""


def make_inputs(images=4, texts=4, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    image, text = (F.normalize(torch.randn(rows, 8, generator=generator), dim=-1) for rows in (images, texts))
    return [t.to(dtype).requires_grad_() for t in (image, text, torch.tensor(9.0))]


def pair(module):
    """The module, and a twin that was rewritten, with the outcome."""
    twin = nn.Sequential(copy.deepcopy(module))
    outcomes = [o for o in rewrite(twin) if o.name == "0"]
    return module, twin[0], outcomes


KNOWN: dict[str, Any] = {
    "ours": clip.ContrastiveLoss,
    "open_clip's": ClipLoss,
    "written otherwise": lambda: ClipLossOf("all texts"),
    "two products": lambda: type("ClipLossOfTwoProducts", (TwoProducts,), {})(),
}
OTHER = {
    "smoothed": lambda: ClipLoss(smoothing=0.1),
    "limited": lambda: ClipLoss(limit=100.0),
    "limited later": lambda: ClipLoss(limit=1000.0),
    "without equal texts": lambda: ClipLossOf("no equal texts"),
    "without equal pictures": lambda: ClipLossOf("no equal pictures"),
    "without equal pairs": lambda: ClipLossOf("no equal pairs"),
    "without similar texts": lambda: ClipLossOf("no similar texts"),
    "without close texts": lambda: ClipLossOf("no close texts"),
    "without close pictures": lambda: ClipLossOf("no close pictures"),
    "of the hardest": lambda: ClipLossOf("hardest texts"),
    "not halved": lambda: ClipLoss(share=1.0),
    "normalising": lambda: type("NormalisingClipLoss", (Normalising,), {})(),
    "another in eval": lambda: type("CLIPLossInEval", (InEval,), {})(),
    "of two tensors": lambda: type("ContrastiveOfTwo", (nn.Module,), {"forward": lambda self, a, b: (a - b).sum()})(),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_contrastive_loss_is_known_by_what_it_computes(name):
    ordinary, fast, outcomes = pair(KNOWN[name]())
    assert [(o.mechanism, o.done) for o in outcomes] == [("probes", "ops.contrastive_loss")]
    given, twins = make_inputs(), make_inputs()
    loss, expected = fast(*given), ordinary(*twins)
    assert loss.grad_fn.name() == "ContrastiveLossFunctionBackward"
    torch.testing.assert_close(loss, expected)
    for a, b in zip(torch.autograd.grad(loss, given), torch.autograd.grad(expected, twins), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OTHER)
def test_one_that_computes_something_else_is_left_alone(name):
    _, module, outcomes = pair(OTHER[name]())
    assert "forward" not in module.__dict__
    assert [o.left for o in outcomes] == [NOT_CONTRASTIVE]


@pytest.mark.parametrize("make", [ContrastiveWithWeight, Siglip])
def test_one_that_does_not_look_like_it_is_not_asked(make):
    _, module, outcomes = pair(make())
    assert "forward" not in module.__dict__
    assert not outcomes


def test_a_probe_leaves_no_trace():
    module = ClipLoss()
    rewrite(nn.Sequential(module))
    assert module.labels == {}


def test_more_texts_than_images_are_taken_where_the_module_took_them():
    ordinary, fast, _ = pair(clip.ContrastiveLoss())
    tensors = make_inputs(3, 7)
    loss = fast(*tensors)
    assert loss.grad_fn.name() == "ContrastiveLossFunctionBackward"
    torch.testing.assert_close(loss, ordinary(*tensors))
    _, fast, _ = pair(ClipLoss())
    with pytest.raises(ValueError, match="batch_size"):  # its own, of torch
        fast(*tensors)


def test_more_texts_stay_with_a_module_that_leaves_some_of_them_out():
    _, fast, _ = pair(ContrastiveWithoutKnownTexts())
    assert fast(*make_inputs(4, 4)).grad_fn.name() == "ContrastiveLossFunctionBackward"
    image, text, scale = make_inputs(4, 4)
    torch.testing.assert_close(fast(image, torch.cat([text, text[:2]]), scale), fast(image, text, scale))


@pytest.mark.parametrize("call", ["output_dict", "by name", "16 bits", "a scale of one row"])
def test_other_calls_are_the_modules_own(call):
    ordinary, fast, _ = pair(ClipLoss())
    image, text, scale = make_inputs(dtype=torch.bfloat16 if call == "16 bits" else torch.float32)
    args, kwargs = {
        "output_dict": ((image, text, scale), {"output_dict": True}),
        "by name": ((image, text), {"logit_scale": scale}),
        "16 bits": ((image, text, scale), {}),
        "a scale of one row": ((image, text, scale[None]), {}),
    }[call]
    found, expected = fast(*args, **kwargs), ordinary(*args, **kwargs)
    if call == "output_dict":
        assert list(found) == ["contrastive_loss"]
        found, expected = found["contrastive_loss"], expected["contrastive_loss"]
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)
    assert found.grad_fn.name() != "ContrastiveLossFunctionBackward"


def test_a_setting_that_is_changed_later_counts():
    ordinary, fast, _ = pair(ClipLoss())
    ordinary.smoothing = fast.smoothing = 0.2
    tensors = make_inputs()
    assert torch.equal(fast(*tensors), ordinary(*tensors))


def test_it_is_put_back():
    model = nn.Sequential(clip.ContrastiveLoss())
    rewrite(model)
    assert isinstance(model[0].forward, ContrastiveForward)
    put_back(model)
    assert "forward" not in model[0].__dict__


def test_a_copy_stands_before_its_own_module():
    _, fast, _ = pair(ClipLoss())
    twin = copy.deepcopy(fast)
    assert twin.forward.module is twin
    assert torch.equal(twin(*make_inputs()), fast(*make_inputs()))


IMAGES = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randint(0, 49, (9, 7), generator=torch.Generator().manual_seed(2))
TOKENS[:, -1] = 49


def make_clip(chunk=None):
    torch.manual_seed(0)
    model = clip.build(
        vocabulary=50, image=32, patch=16, vision_width=128, vision_layers=1, vision_heads=2, context=8, text_width=32,
        text_layers=1, text_heads=2, space=16, chunk=chunk,
    )  # fmt: skip
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def losses(model, optimizer, steps=4):
    found = []
    for _ in range(steps):
        loss = clip.loss(model, (TOKENS, IMAGES))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize(("precision", "band"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_the_losses_of_a_prepared_clip_follow_stock_pytorch(precision, band, chunk):
    stock = losses(*make_clip())
    model, optimizer = fullstride.prepare(*make_clip(chunk), precision=precision)
    assert losses(model, optimizer) == pytest.approx(stock, rel=band)
    text = str(fullstride.explain(model))
    assert "1 x ContrastiveLoss: ops.contrastive_loss (probes)" in text
    assert "1 x Conv2d: fullstride.nn.Conv2d (class_swap)" in text


def test_a_trace_names_who_caught_it():
    model, optimizer = fullstride.prepare(*make_clip(), precision="fp32")
    rows = fullstride.explain(model, trace=lambda: losses(model, optimizer, 1)).trace.rows
    assert {(row.module, row.mechanism) for row in rows if row.operation == "cross_entropy"} == {("loss", "probes")}
