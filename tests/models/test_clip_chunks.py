"""A CLIP that takes its batch in chunks: the memory of a chunk, the loss and the gradients of all."""

import copy
import subprocess
import sys

import pytest
import torch

import fullstride
from fullstride.models import clip

from ..patience import PATIENCE

SHAPE = {
    "vocabulary": 20, "image": 32, "patch": 8, "vision_width": 64, "vision_layers": 2, "vision_heads": 2,
    "context": 9, "text_width": 32, "text_layers": 2, "text_heads": 2, "space": 16,
}  # fmt: skip
MEASURE = """
import torch
import fullstride
from fullstride.machine.memory import peak_bytes, resident_bytes
from fullstride.models import clip

torch.manual_seed(0)
model = clip.build(
    vocabulary=50, image=64, patch=8, vision_width=128, vision_layers=4, vision_heads=2, context=16, text_width=64,
    text_layers=2, text_heads=2, space=32, chunk=4,
)
model, optimizer = fullstride.prepare(model, torch.optim.AdamW(model.parameters()), precision="fp32", threads=1)

def step(pairs):
    tokens = torch.randint(0, 49, (pairs, 16))
    tokens[:, -1] = 49
    clip.loss(model, (tokens, torch.randn(pairs, 3, 64, 64))).backward()
    optimizer.step()
    optimizer.zero_grad()

step(4)
before = resident_bytes()
step(64)
print(peak_bytes() - before)
model.chunk = None
step(64)
print(peak_bytes() - before)
"""


def batch(pairs, wrong):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 19, (pairs + wrong, 9), generator=generator)
    tokens[:, -1] = 19
    return tokens, torch.randn(pairs, 3, 32, 32, generator=generator)


@pytest.mark.usefixtures("quiet")
def test_64_pairs_in_chunks_of_4_hold_far_less_memory():
    words = [sys.executable, "-c", MEASURE]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE)
    chunked, whole = map(int, done.stdout.split())
    # 4 layers x 64 pictures x 65 squares of about 10 x 128 numbers, of which a chunk is a sixteenth
    assert whole > 80 << 20
    assert chunked < whole / 3


@pytest.mark.usefixtures("quiet")
def test_a_model_prepared_in_bf16_computes_the_same_in_chunks_to_its_rounding():
    torch.manual_seed(0)
    plain, found = clip.build(**SHAPE), []
    for chunk in (None, 3):
        model = copy.deepcopy(plain)
        model.chunk = chunk
        optimizer = torch.optim.AdamW(model.parameters())
        model, optimizer = fullstride.prepare(model, optimizer, precision="bf16")
        loss = clip.loss(model, batch(10, 4))
        loss.backward()
        gradients = {name: p.grad.float().clone() for name, p in model.named_parameters() if p.grad is not None}
        found.append((loss.item(), gradients))
        fullstride.restore(model)
    (whole, expected), (chunked, gradients) = found
    assert chunked == pytest.approx(whole, rel=2**-8)
    assert gradients.keys() == expected.keys() == dict(plain.named_parameters()).keys()
    for name, gradient in expected.items():
        if not name.endswith("key.bias"):  # which is 0 but for rounding
            assert (gradients[name] - gradient).norm() <= 2**-6 * gradient.norm(), name
