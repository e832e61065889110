"""What is counted of a step, held against counts by hand."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from fullstride import counting
from fullstride.models import clip, fastspeech2, llama
from fullstride.studies.advise import costs
from fullstride.studies.advise.calls import Call, Form
from fullstride.studies.advise.watching import count

from . import tiny

BF16 = torch.bfloat16


def names(counted):
    return Counter(call.name for call in counted.calls)


def one(counted, name):
    (call,) = [call for call in counted.calls if call.name == name]
    return call


def by_phase(call):
    return {cost.phase: cost for cost in costs.of(call)}


def total(model, x):
    return model(x).float().sum()


# ---- products --------------------------------------------------------------------------------------------------------


def test_the_products_of_an_mlp_by_hand():
    counted = count(tiny.mlp(), tiny.loss, tiny.batch())
    first, second = (by_phase(call) for call in counted.calls if call.name == "linear")
    assert first["forward"] == ("forward", 2 * 32 * 8 * 16, 4 * (32 * 8 + 16 * 8 + 16), 4 * 32 * 16)
    # dW alone, for the batch learns nothing; y and dy go through the ReLU into g, then g and x into dW
    assert first["backward"] == ("backward", 2 * 32 * 8 * 16, 4 * (3 * 32 * 16 + 32 * 8), 4 * (16 * 8 + 32 * 16))
    assert second["forward"].flops == 2 * 32 * 16 * 4
    assert second["backward"].flops == 2 * second["forward"].flops
    assert second["backward"].written == 4 * (32 * 16 + 16 * 4)  # dx and dW


def test_what_is_activated_behind_a_layer_is_a_part_of_it():
    counted = count(tiny.mlp(), tiny.loss, tiny.batch())
    assert [call.options["activation"] for call in counted.calls if call.name == "linear"] == ["relu", "none"]
    assert not {"relu", "threshold_backward"} & set(names(counted))


def test_in_bf16_weights_and_activations_are_two_bytes():
    linear = [call for call in count(tiny.mlp(), tiny.loss, tiny.batch(), BF16).calls if call.name == "linear"]
    assert [call.inputs["weight"].dtype for call in linear] == [BF16, BF16]
    assert linear[1].inputs["x"].nbytes == 2 * 32 * 16
    assert linear[0].inputs["x"].dtype is torch.float32  # the batch, which the layer rounds


def test_layers_that_share_an_input_round_it_once():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.first(x) + self.second(x)

    linear = [call for call in count(Two(), total, torch.zeros(4, 8), BF16).calls if call.name == "linear"]
    assert [call.inputs["x"].dtype for call in linear] == [torch.float32, BF16]


TOKENS = torch.zeros(2, 8, dtype=torch.int64)
LLAMA = {"vocabulary": 50, "width": 16, "layers": 2, "heads": 2, "kv_heads": 1, "hidden": 32, "context": 8}
CLIP = {
    "vocabulary": 20, "image": 16, "patch": 8, "vision_width": 16, "vision_layers": 1, "vision_heads": 2, "context": 5,
    "text_width": 16, "text_layers": 1, "text_heads": 2, "space": 8,
}  # fmt: skip
PAIRS = torch.zeros(4, 5, dtype=torch.int64), torch.zeros(4, 3, 16, 16)
SPEECH = {"phonemes": 9, "width": 16, "encoder_layers": 1, "decoder_layers": 1, "hidden": 24, "mel_bins": 10}
SENTENCES = (
    torch.ones(2, 4, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), torch.ones(2, 4, dtype=torch.int64),
    torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2, 6, 10),
)  # fmt: skip


@pytest.mark.parametrize("dtype", [None, BF16])
@pytest.mark.parametrize(
    ("build", "arguments", "batch", "more"),
    [
        pytest.param(llama, LLAMA, (TOKENS, TOKENS), 0, id="llama"),
        # Torch saves before it computes, so it leaves out the last product of a checkpoint; ours has done it by then.
        pytest.param(
            llama, LLAMA | {"recompute": True}, (TOKENS, TOKENS), 2 * 2 * 16 * 32 * 16, id="llama that recomputes"
        ),
        pytest.param(clip, CLIP, PAIRS, 0, id="clip"),
        pytest.param(clip, CLIP | {"chunk": 2}, PAIRS, 2 * 2 * 4 * 16 * 8, id="clip in chunks"),
        pytest.param(fastspeech2, SPEECH, SENTENCES, 0, id="fastspeech2"),
    ],
)
def test_the_operations_are_those_of_flops(build, arguments, batch, more, dtype):
    model = build.build(**arguments).train()
    counted = count(model, build.loss, batch, dtype)
    expected = counting.flops_of(model, build.loss, batch)
    found = sum(cost.flops for call in counted.calls for cost in costs.of(call))
    assert found - sum(call.flops for call in counted.calls if "embedding" in call.name) == (
        expected.total - expected.embeddings + more
    )


# ---- what is one pass ------------------------------------------------------------------------------------------------


def test_attention_is_one_call_without_its_square():
    counted = count(tiny.Layer(), total, torch.zeros(2, 4, 16))
    call = one(counted, "attention")
    square = 2 * (2 * 2 * 4) * 4 * (8 + 8)  # rows, keys, and the widths of scores and mix
    size = 4 * 2 * 2 * 4 * 8  # bytes of query, key, value or result
    assert by_phase(call)["forward"] == ("forward", square // 2, 3 * size, size)
    assert by_phase(call)["backward"] == ("backward", square, 5 * size, 3 * size)
    shapes = [form.shape for each in counted.calls for form in each.outputs.values()]
    assert (2, 2, 4, 4) not in shapes


def test_a_gate_is_one_pass_with_what_it_lets_through():
    counted = count(tiny.Layer(), total, torch.zeros(2, 4, 16))
    size = 4 * 2 * 4 * 32
    found = by_phase(one(counted, "glu"))
    assert found["forward"][2:] == (2 * size, size)
    assert found["backward"][2:] == (3 * size, 2 * size)
    assert not {"silu", "silu_backward", "mul"} & set(names(counted))


def test_a_sum_is_in_the_norm_behind_it_and_the_last_one_is_not():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([tiny.Layer(), tiny.Layer()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    counted = count(Model(), total, torch.zeros(2, 4, 16))
    assert Counter(call.options["residual"] for call in counted.calls if call.name == "rms_norm") == {
        True: 2, False: 2
    }  # fmt: skip
    sums = [call for call in counted.calls if call.name == "add" and not call.is_backward]
    assert len(sums) == 2  # at the end of each layer; its norm stands in the code of the next
    size = 4 * 2 * 4 * 16
    fused = next(call for call in counted.calls if call.options.get("residual"))
    assert [cost[2:] for cost in costs.of(fused)] == [(2 * size, 2 * size), (3 * size, size)]


def test_turning_by_positions_is_one_pass():
    counted = count(tiny.Layer(), total, torch.zeros(2, 4, 16))
    assert names(counted)["rope"] == 2
    assert not {"cat", "sub"} & set(names(counted))


@pytest.mark.parametrize("learns", [True, False])
def test_the_logits_of_a_large_head_are_never_held(learns):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 4096, bias=False)

        def forward(self, x, targets):
            return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())

    batch = torch.zeros(2, 3, 8, requires_grad=learns), torch.zeros(2, 3, dtype=torch.int64)
    counted = count(Model(), lambda model, pair: model(*pair), batch, BF16)
    assert "linear" not in names(counted)
    call = one(counted, "linear_cross_entropy")
    assert (call.inputs["x"].shape, call.inputs["weight"].shape) == ((6, 8), (4096, 8))
    (cost,) = costs.of(call)
    assert (cost.phase, cost.flops) == ("forward", (2 + learns) * 2 * 6 * 8 * 4096)  # logits, dW, and dx
    assert all(4096 not in form.shape for each in counted.calls for form in each.outputs.values())


def test_a_convolution_has_its_activation_and_its_layout():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(8, 4, 3, padding=1)

        def forward(self, x):
            return F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)

    counted = count(Model(), total, torch.zeros(2, 5, 8))
    call = one(counted, "convolution")
    assert call.options["activation"] == "relu"
    assert call.flops == 2 * (2 * 4 * 5) * (8 * 3)
    assert call.outputs["y"].stride == (20, 1, 4)  # channels innermost, as x has them


def test_dropout_and_embedding_are_passes():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Dropout(0.5))
    counted = count(model, total, torch.zeros(2, 3, dtype=torch.int64), BF16)
    rows = 2 * 3 * 4
    found = by_phase(one(counted, "embedding"))
    assert found["forward"][2:] == (8 * 6 + 2 * rows + 2 * rows, 2 * rows + 4 * rows)  # rows, then in fp32
    assert found["backward"].written == 2 * 10 * 4  # the whole table
    assert [cost[2:] for cost in costs.of(one(counted, "dropout"))] == 2 * [(4 * rows, 4 * rows)]


def test_views_cost_nothing():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 6))

        def forward(self, x):
            return (self.weight.t().reshape(2, 12)[:, 2:].unsqueeze(0).expand(3, 2, 10) * 2).sum()

    counted = count(Model(), lambda model, x: model(x), torch.zeros(1))
    forward = [call.name for call in counted.calls if not call.is_backward]
    assert forward == ["clone", "mul", "sum"]  # reshape of what is transposed is a copy


def test_an_expanded_tensor_is_read_once():
    assert Form((3, 5), torch.float32, (0, 1)).nbytes == 20
    assert Form((3, 5), torch.float32, (5, 1)).nbytes == 60


def test_what_a_checkpoint_computes_again_counts():
    class Model(nn.Module):
        def __init__(self, again):
            super().__init__()
            self.inner, self.again = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), again

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x)

    plain, again = (count(Model(again), total, torch.zeros(4, 8)) for again in (False, True))
    assert names(plain)["linear"] == 1
    linear = [call for call in again.calls if call.name == "linear"]
    assert [bool(call.wants) for call in linear] == [True, False]


def test_other_modules_are_counted_as_torch_runs_them():
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Tanh())
    found = names(count(model, total, torch.zeros(4, 8)))
    assert {"native_batch_norm", "tanh", "native_batch_norm_backward", "tanh_backward"} <= set(found)


def test_code_that_looks_at_values_is_counted_with_them():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x) if float(x.sum()) > 0 else x

    assert names(count(Model(), total, torch.ones(2, 4)))["linear"] == 1


def test_counting_leaves_the_model_alone():
    model = tiny.mlp()
    before = {name: (value.dtype, value.clone()) for name, value in model.state_dict().items()}
    count(model, tiny.loss, tiny.batch(), BF16)
    assert all(value.dtype is before[name][0] for name, value in model.state_dict().items())
    assert all(torch.equal(value, before[name][1]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert "forward" not in model.__dict__


def test_a_batch_that_does_not_fit_says_so():
    with pytest.raises(ValueError, match="advise: the batch does not go through the model: RuntimeError"):
        count(tiny.mlp(), tiny.loss, (torch.zeros(32, 9), torch.zeros(32, dtype=torch.int64)))


def test_calls_of_the_same_sizes_have_the_same_key():
    def call(rows, activation="none"):
        x = Form((rows, 8), torch.float32, (8, 1))
        return Call("linear", "a", {"x": x}, options={"activation": activation})

    assert call(4).key == call(4).key == "linear(x 4x8 fp32, activation=none)"
    assert len({call(4).key, call(5).key, call(4, "relu").key}) == 3
