"""Which layers freeze together, and in which order: what _stages.py makes of a forward pass or of layers given."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fullstride
from fullstride.optim.freezing import DynamicFreezer

from .freezers import batch, by_norms, frozen_by, layers_of, mlp, parameters_of, traced


class Reversed(nn.Module):
    """Registered in another order than called, with containers and parameters of its own."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(2))
        self.stem = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.position = nn.Parameter(torch.zeros(8))
        self.scale = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = self.drop(self.stem(x)) + self.position
        for block in self.blocks:
            x = x + block(x)
        return self.head(x) * self.scale


def test_layers_are_found_in_forward_order():
    freezer = traced(Reversed())
    assert layers_of(freezer) == [["stem"], ["drop", "blocks.0"], ["blocks.1"], ["head"], []]


def test_parameters_between_layers_belong_to_the_next_one():
    owned = parameters_of(traced(Reversed()))
    assert owned[1] == ["position", *(f"blocks.0.{i}.{name}" for i in (0, 1) for name in ("weight", "bias"))]
    assert owned[-1] == ["scale", "unused"]


def test_a_prefix_with_parameters_between_layers_leaves_backward():
    model = Reversed()
    frozen_by(model, 3)
    outputs = []
    model.blocks[1].register_forward_hook(lambda *call: outputs.append(call[-1]))
    model(batch()[0])
    assert outputs[0].grad_fn is None


class Tied(nn.Module):
    """A language model: the head's weight is the embedding's, as a module or as a function."""

    def __init__(self, functional):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.functional = functional
        if not functional:
            self.head = nn.Linear(8, 10, bias=False)
            self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = self.hidden = block(x).tanh()
        return F.linear(x, self.embed.weight) if self.functional else self.head(x)


@pytest.mark.parametrize("functional", [False, True])
def test_a_tied_weight_belongs_to_its_last_user(functional):
    freezer = traced(Tied(functional), torch.tensor([1, 2]))
    assert layers_of(freezer) == [["embed", "blocks.0"], ["blocks.1"], [] if functional else ["head"]]
    assert parameters_of(freezer)[-1] == ["embed.weight"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("functional", [False, True])
def test_a_tied_weight_of_a_prepared_model_belongs_to_its_last_user(functional, precision):
    model = Tied(functional)
    fullstride.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), precision=precision)
    assert parameters_of(traced(model, torch.tensor([1, 2])))[-1] == ["embed.weight"]


@pytest.mark.parametrize("functional", [False, True])
def test_the_frozen_front_of_a_tied_model_leaves_backward_while_its_weight_learns_at_the_end(functional):
    model, tokens = Tied(functional), torch.tensor([1, 2])
    freezer = frozen_by(model, 2, tokens)
    model.zero_grad()
    logits = model(tokens)
    assert model.hidden.grad_fn is None
    logits[:, 5].sum().backward()
    grad = model.embed.weight.grad
    assert torch.equal(grad.abs().sum(1) > 0, torch.arange(10) == 5)  # nothing for the tokens that were embedded
    freezer.thaw()
    model.zero_grad()
    model(tokens)[:, 5].sum().backward()
    assert (model.embed.weight.grad.abs().sum(1) > 0).tolist() == [i in (1, 2, 5) for i in range(10)]


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        return self.d(self.c(self.a(self.b(self.a(x)))))


def test_a_module_called_twice_freezes_together_with_what_lies_between():
    assert layers_of(traced(Shared())) == [["a", "b"], ["c"], ["d"]]


class EarlyAndLate(nn.Module):
    """One parameter used before the first layer, where nothing can be detached, and by the last but one."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        self.shift = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return self.c(self.b(self.a(x + self.shift)) + self.shift)


def test_layers_between_two_uses_of_a_parameter_freeze_together():
    assert layers_of(traced(EarlyAndLate())) == [["a", "b", "c"]]


def test_looking_at_a_parameter_is_not_using_it():
    class Looks(Shared):
        def forward(self, x):
            y = self.c(self.b(self.a(x)))
            return y.to(self.a.weight.dtype) * self.b.weight.detach().norm() * self.c.bias.data.sum() * len(self.d.bias)

    assert parameters_of(traced(Looks())) == [[f"{name}.weight", f"{name}.bias"] for name in "abcd"]


def test_layers_can_be_given():
    model = Reversed()
    freezer = by_norms(model, layers=[model.stem, *model.blocks], patience=1)
    assert layers_of(freezer) == [["stem"], ["blocks.0"], ["blocks.1"], []]
    assert parameters_of(freezer)[-1] == ["position", "scale", "unused", "head.weight", "head.bias"]
    tied = Tied(functional=False)
    freezer = DynamicFreezer(tied, layers=[tied.embed, *tied.blocks, tied.head])
    assert parameters_of(freezer)[-1] == ["embed.weight"]
    assert freezer._watched[0].stage.detach == ["embed"]


def test_blocks_of_a_wrapped_model_are_found():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Reversed()
            self.out = nn.Linear(8, 8)

        def forward(self, x):
            return self.out(self.body(x))

    layers = layers_of(traced(Wrapper()))
    assert layers == [["body.stem"], ["body.drop", "body.blocks.0"], ["body.blocks.1"], ["body.head"], ["out"], []]


def test_a_compiled_model_freezes_when_its_layers_are_given():
    model = mlp()
    compiled = torch.compile(model, backend="eager")
    blind = DynamicFreezer(compiled)
    compiled(batch()[0])
    with pytest.raises(RuntimeError, match=r"pass layers=\[...\] in forward order \(with torch.compile always\)"):
        blind.step()
    freezer = by_norms(compiled, threshold=1e9, patience=1, layers=[model[0], model[2], model[4]])
    for _ in range(3):
        model.zero_grad()
        compiled(batch()[0]).sum().backward()
        freezer.step()
    assert freezer.report().frozen_layers == ["0", "2", "4"]
    assert [p.grad is None for p in model.parameters()] == [True] * 6 + [False] * 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_order_is_seen_through_checkpointing(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp()

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x

    model = Checkpointed()
    freezer = DynamicFreezer(model)
    model(batch()[0].requires_grad_()).sum().backward()
    freezer.step()
    assert [stage[-1] for stage in layers_of(freezer)] == ["layers.0", "layers.2", "layers.4", "layers.6"]


def test_a_forward_pass_that_fails_or_records_nothing_is_not_taken_for_the_order():
    model = mlp()
    freezer = DynamicFreezer(model)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        model(torch.ones(3, 5))
    with torch.no_grad():
        model(batch()[0])
    with pytest.raises(RuntimeError, match=r"expected a forward pass of the model before step\(\)"):
        freezer.step()
    model(batch()[0]).sum().backward()
    freezer.step()
    assert len(layers_of(freezer)) == 4
    assert not torch.overrides._get_current_function_mode_stack()


def test_nothing_of_the_look_at_the_order_stays_in_the_model():
    model = mlp()
    traced(model)
    assert all(not (m._forward_hooks or m._forward_pre_hooks) for m in model.modules())


def test_layers_that_overlap_are_refused():
    model = mlp()
    with pytest.raises(ValueError, match="expected layers that share no module, got '0' in layers 0 and 1"):
        DynamicFreezer(model, layers=[model[0], model])
