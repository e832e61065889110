"""Each part of what the mechanisms put in place can be left out by name: its kernels do not run, and losses stay."""

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullstride
from fullstride import rewriting, runtime
from fullstride.models import llama
from fullstride.ops import products
from fullstride.ops.products import SHAPES, backend
from fullstride.rewriting.mechanisms import MECHANISMS, PARTS
from fullstride.rewriting.used import used

pytestmark = pytest.mark.usefixtures("quiet")
TOKENS, TARGETS = torch.randint(300, (2, 2, 24), generator=torch.Generator().manual_seed(2))
SERIES = torch.randn(4, 40, 64, generator=torch.Generator().manual_seed(3)).transpose(1, 2)


class Other(nn.Module):
    """Dropout, convolutions and activations, of which the Llama has none."""

    def __init__(self, share):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(64, 64, 5, padding=2), nn.ReLU())
        self.behind = nn.Conv1d(64, 64, 3, padding=1)
        self.dropout = nn.Dropout(share)
        self.classes = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 5))

    def forward(self, x, targets):
        x = self.dropout(self.behind(self.front(x)))
        return F.cross_entropy(self.classes(F.silu(x.mean(2))), targets)


def small_llama():
    torch.manual_seed(0)
    return llama.build(vocabulary=300, width=32, layers=2, heads=4, kv_heads=2, hidden=80, context=32)


def other(share=0.25):
    torch.manual_seed(0)
    return Other(share)


LABELS = torch.tensor([0, 4, 2, 2])
MODELS = {
    "llama": (small_llama, (TOKENS, TARGETS)),
    "other": (other, (SERIES, LABELS)),
    "other that drops nothing": (lambda: other(0.0), (SERIES, LABELS)),  # which elements depends on who drops them
}
KERNELS = {  # a model that has the part, and what the names of its kernels have in them
    "activations": ("other", "bias_act"),
    "gates": ("llama", "glu"),
    "norms": ("llama", "rms_norm"),
    "attention": ("llama", "attention"),
    "rotary": ("llama", "rope"),
    "loss": ("llama", "cross_entropy"),
    "embedding": ("llama", "embedding"),
    "dropout": ("other", "dropout"),
    "convolutions": ("other", "conv1d|unfold|gemm"),
    "optimizer": ("llama", "adam"),
}


class Training:
    def __init__(self, name, without=(), **options):
        build, self.batch = MODELS[name]
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        options = {"precision": "fp32", "without": without} | options
        self.model, self.optimizer = fullstride.prepare(model, optimizer, **options)
        self.losses = []

    def step(self):
        loss = self.model(*self.batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())

    def run(self, steps=3):
        torch.manual_seed(1)
        for _ in range(steps):
            self.step()
        return self.losses

    def kernels(self):
        """Names of those of ours that a step calls."""
        rows = rewriting.trace(self.model, self.step).rows
        return {row.operation for row in rows if row.who.startswith("our kernel")}

    def used(self):
        found = fullstride.explain(self.model)
        return used(self.model, found.outcomes, found.setting)


@pytest.mark.parametrize("part", KERNELS)
def test_the_kernels_of_a_part_that_is_left_out_do_not_run(part):
    name, pattern = KERNELS[part]
    # A bias is added by the kernel of activations, and linear layers and convolutions are multiplied by the same one.
    others = ["linear"] if part in ("activations", "convolutions") else []
    others += ["convolutions"] if part == "activations" else ["activations"] if part == "convolutions" else []
    ran, left = (Training(name, off).kernels() for off in (others, [*others, part]))
    assert [kernel for kernel in ran if re.search(pattern, kernel)]
    assert not [kernel for kernel in left if re.search(pattern, kernel)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("part", [part for part in PARTS if part != "optimizer"])
@pytest.mark.parametrize("name", ["llama", "other that drops nothing"])
def test_without_a_part_the_losses_are_the_same(name, part, precision):
    expected = Training(name, precision=precision).run()
    found = Training(name, [part], precision=precision).run()
    assert found == pytest.approx(expected, rel=1e-5 if precision == "fp32" else 5e-3)


@pytest.mark.parametrize("part", ["linear", *(name for name in KERNELS if name != "optimizer")])
def test_what_is_left_out_is_not_used(part):
    name = KERNELS.get(part, ("llama", ""))[0]
    with_it, without_it = Training(name), Training(name, [part])
    for training in (with_it, without_it):
        training.run(1)
    assert part in with_it.used()
    assert part not in without_it.used()
    assert f"off        {part}: {PARTS[part]}" in str(fullstride.explain(without_it.model))


def test_with_everything_left_out_a_model_runs_as_it_was():
    training = Training("llama", [*PARTS, *MECHANISMS])
    assert training.kernels() == set()
    assert training.used() == frozenset()
    plain, batch = MODELS["llama"][0](), MODELS["llama"][1]
    assert [type(module) for module in training.model.modules()] == [type(module) for module in plain.modules()]
    assert Training("llama", [*PARTS, *MECHANISMS]).run(1) == [plain(*batch).item()]


def test_a_sum_waits_for_no_norm_that_is_left_out():
    assert "residual + RMSNorm" in str(fullstride.explain(Training("llama").model))
    for part in ("norms", "residuals"):
        assert "residual" not in str(fullstride.explain(Training("llama", [part]).model)).partition("replaced")[2]


def test_linear_layers_keep_their_activations_where_convolutions_are_left_out():
    training = Training("other", ["convolutions"])
    text = str(fullstride.explain(training.model))
    assert "Linear + GELU" in text
    assert "Conv1d" not in text.partition("replaced")[2]
    assert fullstride.restore(training.model).classes.__class__ is nn.Sequential


def test_products_are_torchs_where_they_are_left_out():
    training = Training("llama", ["products"])
    assert {backend(dtype, shape) for dtype in runtime.current().backends for shape in SHAPES} == {"torch"}
    assert "products" not in training.used()
    assert not [kernel for kernel in training.kernels() if "gemm" in kernel]
    Training("llama")  # the last prepare() decides
    assert runtime.current().own_products


def test_torchs_products_are_not_taken_where_they_must_not_be(monkeypatch):
    monkeypatch.setattr(products, "exclude", lambda reasons: runtime.current().excluded.update(BAD))
    with pytest.raises(ValueError, match=r"torch's product in torch\.float32 cannot be used here: dies"):
        Training("llama", ["products"])


BAD = {(torch.float32, "torch"): "dies"}


def test_sums_of_micro_batches_are_torchs_without_products():
    runtime.current().own_products = False
    out, a, b = torch.zeros(3, 5), torch.randn(3, 4).bfloat16(), torch.randn(4, 5).bfloat16()
    assert not products.add_product(out, a, b)
    runtime.current().own_products = True
    assert products.add_product(out, a, b)


def test_torchs_linear_layers_can_have_split_weights():
    training = Training("other", ["linear", "activations"], precision="bf16")
    linear = training.model.classes[0]
    assert type(linear) is nn.Linear
    assert linear.weight.dtype is torch.bfloat16
    exact = fullstride.restore(training.model).classes[0].weight
    assert torch.equal(exact, other().classes[0].weight)


def test_the_optimizer_that_is_left_out_stays_the_one_that_was_given():
    model = small_llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, same = fullstride.prepare(model, optimizer, precision="fp32", without=["optimizer"])
    assert same is optimizer
    assert type(same) is torch.optim.SGD


def test_an_optimizer_without_a_fast_form_is_fine_where_ours_is_left_out():
    model = small_llama()
    optimizer = torch.optim.Adagrad(model.parameters())
    assert fullstride.prepare(model, optimizer, precision="fp32", without=["optimizer"])[1] is optimizer


@pytest.mark.parametrize(
    ("options", "got"),
    [
        ({"precision": "bf16"}, "bf16"),
        ({"precision": "fp32", "clip": 1.0}, "clip 1.0"),
        ({"precision": "fp32", "state_precision": "8bit"}, "state_precision 8bit"),
    ],
)
def test_what_needs_our_optimizer_is_refused_without_it(options, got):
    with pytest.raises(ValueError, match=f"expected nothing without optimizer that needs it, got {got}; leave one out"):
        Training("llama", ["optimizer"], **options)


def test_threads_that_are_left_out_stay_as_torch_has_them(num_threads):
    num_threads(1)
    Training("llama", ["threads"])
    assert torch.get_num_threads() == 1
    assert "threads" not in runtime.current().changes
    with pytest.raises(ValueError, match="expected no number without threads, got 2; leave one out"):
        Training("llama", ["threads"], threads=2)


def test_a_refused_wish_for_torchs_products_leaves_the_process_as_it_was(num_threads, monkeypatch):
    first = Training("llama", threads=2)
    own, threads = runtime.current().own_products, torch.get_num_threads()
    reasons = {(torch.float32, "torch"): "it is wrong here"}
    monkeypatch.setattr(products, "exclude", lambda _: setattr(runtime.current(), "excluded", reasons))
    with pytest.raises(ValueError, match=r"torch's product in torch\.float32 cannot be used here: it is wrong here"):
        Training("llama", ["products"], threads=1)
    assert (own, threads) == (True, 2)
    assert runtime.current().own_products
    assert torch.get_num_threads() == 2
    runtime.current().excluded = {}
    assert first.run(1)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_leaves_the_same_parts_out(copied):
    model = copied(Training("llama", ["gates", "attention"]).model)
    loss = model(*MODELS["llama"][1])
    assert loss.item() == pytest.approx(Training("llama").run(1)[0], rel=1e-5)
    kernels = {row.operation for row in rewriting.trace(model, lambda: model(TOKENS, TARGETS).backward()).rows}
    assert not [name for name in kernels if "glu" in name or "attention_forward" in name]


def test_the_page_tells_of_every_part_and_of_no_other():
    page = (Path(rewriting.__file__).parent / "README.md").read_text()
    named = set(re.findall(r"^- `(\w+)`: ", page, re.MULTILINE))
    assert named == set(PARTS)
