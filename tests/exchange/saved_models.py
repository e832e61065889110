"""Small models with random weights, for every format alike."""

import torch

from fullstride import exchange
from fullstride.models import llama
from fullstride.tokens import Characters

CHARACTERS = Characters("Hello, world\n\u00e9\u4f60")
SHAPE = {
    "vocabulary": CHARACTERS.size, "width": 32, "layers": 2, "heads": 4, "kv_heads": 4, "hidden": 40, "context": 24,
    "tied": True, "rope_base": 10000.0, "eps": 1e-5,
}  # fmt: skip
SHAPES = [
    SHAPE,
    SHAPE | {"tied": False},
    SHAPE | {"kv_heads": 2},
    SHAPE | {"kv_heads": 1, "tied": False, "layers": 3},
]
NAMES = ["tied", "untied", "grouped", "grouped-untied"]


def model_of(shape, seed=0):
    """Weights far from their initial values, norms included, so that nothing can be left out unseen."""
    torch.manual_seed(seed)
    model = llama.build(**shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2)
    return model


def saved_of(shape=SHAPE, tokenizer=None, seed=0):
    return exchange.SavedModel(dict(shape), model_of(shape, seed).state_dict(), tokenizer)


def logits_of(saved, tokens):
    model = llama.build(**saved.shape)
    model.load_state_dict(saved.tensors)
    with torch.no_grad():
        return model(tokens)


def tokens_of(shape, count=17):
    return torch.randint(shape["vocabulary"], (1, count), generator=torch.Generator().manual_seed(1))


def assert_equal(found, expected):
    """The same shape and the same bits, and a head that is the embedding if it is tied."""
    assert found.shape == expected.shape
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == torch.float32
        assert torch.equal(found.tensors[name], tensor), name
    assert (found.tensors["head.weight"] is found.tensors["embedding.weight"]) == expected.shape["tied"]
