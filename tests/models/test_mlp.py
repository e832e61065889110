import itertools

import numpy as np
import pytest
import torch
from torch import nn

from fullstride.models import mlp
from fullstride.recipes.mlp import Model

FULL = [784, *Model().hidden, 1000]


def count(model):
    return sum(p.numel() for p in model.parameters())


def batch(num=6, num_inputs=5, num_classes=3, dtype=torch.float64):
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(num, num_inputs, generator=random, dtype=dtype)
    return inputs, torch.randint(num_classes, (num,), generator=random)


def test_the_full_size_has_52_million_parameters():
    with torch.device("meta"):
        model = mlp.build(FULL)
    by_hand = sum(num_in * num_out + num_out for num_in, num_out in itertools.pairwise(FULL))
    assert count(model) == by_hand == 52_436_968


def test_linear_and_relu_take_turns_and_scores_come_last():
    kinds = [type(module) for module in mlp.build([5, 4, 7, 3])]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


@pytest.mark.parametrize("shape", [(2, 12), (2, 1, 3, 4), (2, 3, 2, 2)])
def test_images_and_vectors_give_a_score_a_class(shape):
    assert mlp.build([12, 8, 5])(torch.randn(shape)).shape == (2, 5)


def test_without_hidden_layers_it_is_one_linear_layer():
    model = mlp.build([12, 5], dropout=0.5)
    assert [type(module) for module in model] == [nn.Flatten, nn.Linear]


def test_dropout_stands_after_every_hidden_layer_and_not_after_the_scores():
    kinds = [type(module) for module in mlp.build([5, 4, 7, 3], dropout=0.25)]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
    assert {module.p for module in mlp.build([5, 4, 7, 3], dropout=0.25) if isinstance(module, nn.Dropout)} == {0.25}


def test_dropout_drops_in_training_alone():
    torch.manual_seed(0)
    model, x = mlp.build([20, 50, 3], dropout=0.5), torch.randn(4, 20)
    assert not torch.equal(model(x), model(x))
    hidden = model[:4](x)
    kept = model[:3](x) > 0
    share = (hidden[kept] == 0).double().mean().item()
    assert 0.3 < share < 0.7  # of some hundred values
    model.eval()
    assert torch.equal(model(x), model(x))


def test_loss_is_the_mean_of_minus_log_of_the_probability_of_the_label():
    torch.manual_seed(0)
    model, (inputs, labels) = mlp.build([5, 4, 3]).double(), batch()
    probabilities = np.exp(model(inputs).detach().numpy())
    probabilities /= probabilities.sum(1, keepdims=True)
    expected = -np.log(probabilities[np.arange(len(labels)), labels.numpy()]).mean()
    assert mlp.loss(model, (inputs, labels)).item() == pytest.approx(expected, rel=1e-12)


def test_gradients_are_those_of_the_formulas_in_fp64():
    """Of two layers, by hand: scores s = relu(x W1' + b1) W2' + b2, ds = (softmax(s) - onehot) / n."""
    torch.manual_seed(0)
    model, (inputs, labels) = mlp.build([5, 4, 3]).double(), batch()
    mlp.loss(model, (inputs, labels)).backward()
    first, second = (module for module in model if isinstance(module, nn.Linear))
    x = inputs.numpy()
    w1, b1, w2, b2 = (p.detach().numpy() for p in (first.weight, first.bias, second.weight, second.bias))
    z = x @ w1.T + b1
    h = np.maximum(z, 0)
    s = h @ w2.T + b2
    p = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    ds = (p - np.eye(3)[labels.numpy()]) / len(x)
    dz = ds @ w2 * (z > 0)
    expected = {first.weight: dz.T @ x, first.bias: dz.sum(0), second.weight: ds.T @ h, second.bias: ds.sum(0)}
    for parameter, gradient in expected.items():
        np.testing.assert_allclose(parameter.grad.numpy(), gradient, rtol=1e-12, atol=1e-15)


def test_gradients_are_the_slopes_of_the_loss():
    torch.manual_seed(0)
    model, (inputs, labels) = mlp.build([5, 6, 4, 3]).double(), batch()
    names = [name for name, _ in model.named_parameters()]

    def loss(*parameters):
        scores = torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (inputs,))
        return nn.functional.cross_entropy(scores, labels)

    assert torch.autograd.gradcheck(loss, tuple(model.parameters()))
