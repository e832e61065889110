"""Generation: what the cache gives is what the whole sequence gives; what is drawn is drawn as told."""

import math

import pytest
import torch

from fullstride import prepare
from fullstride.generation import Decoder, Sampler, generate
from fullstride.models import llama

SHAPE = {"vocabulary": 61, "width": 32, "layers": 3, "heads": 4, "kv_heads": 4, "hidden": 48, "context": 24}
PROMPT = [1, 17, 4, 33, 8]


def make(**changes):
    """A Llama whose likeliest token is no matter of rounding, and not always the one before."""
    generator = torch.Generator().manual_seed(3)
    model = llama.build(**SHAPE | changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                size = 0.1 if name == "embedding.weight" else 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)
            else:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def greedy(model, prompt, num_tokens):
    """By a forward of everything for each token; where the context is full, from the last half of it on."""
    read, written = list(prompt)[-len(model.cos) :], []
    for _ in range(num_tokens):
        if len(read) > len(model.cos):
            read = read[-(len(model.cos) // 2) :]
        with torch.no_grad():
            written.append(int(model(torch.tensor([read]))[0, -1].argmax()))
        read.append(written[-1])
    return written


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2}, {"kv_heads": 1}, {"tied": False}, {"eps": 0.1}])
def test_greedy_tokens_are_the_likeliest_of_a_full_forward(changes):
    model = make(**changes)
    tokens = list(generate(model, PROMPT, 19, temperature=0))
    assert tokens == greedy(model, PROMPT, 19)
    assert len(set(tokens)) > 3  # not a loop that anything would get right


def effect_of_a_rounding(model, tokens, draws=8):
    """(exact logits, how far they move if every weight is off by one rounding of fp32), from a model in fp64."""
    generator = torch.Generator().manual_seed(0)
    exact, weights, farthest = model(tokens), [parameter.clone() for parameter in model.parameters()], 0.0
    for _ in range(draws):
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            sign = 2 * torch.randint(2, weight.shape, generator=generator, dtype=weight.dtype) - 1
            parameter.copy_(weight * (1 + sign * torch.finfo(torch.float32).eps / 2))
        farthest = max(farthest, float((model(tokens) - exact).abs().max()))
    return exact, farthest


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2}, {"tied": False}])
def test_logits_of_the_cache_are_those_of_a_full_forward(changes):
    tokens = [(11 * i) % 61 for i in range(24)]
    decoder = Decoder(make(**changes))
    with torch.inference_mode():
        read = [decoder.read(tokens[:9], 0)] + [decoder.read([tokens[i]], i) for i in range(9, 24)]
    with torch.no_grad():
        exact, rounding = effect_of_a_rounding(make(**changes).double(), torch.tensor([tokens]))
    # Summed in whatever order, n products are off as if each weight were by at most n roundings, and by about sqrt(n)
    # as the roundings are as good as random. The longest sums here have 48; torch's code for AVX-512, AVX2 and no
    # vectors at all, MKL's and ours are off by 0.7 to 1.6.
    assert (torch.stack(read) - exact[0, 8:]).abs().max() <= 48**0.5 * rounding


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_generation_goes_on_beyond_the_context(kv_heads):
    model = make(kv_heads=kv_heads)
    assert list(generate(model, PROMPT, 70, temperature=0)) == greedy(model, PROMPT, 70)


@pytest.mark.parametrize("length", [1, 23, 24, 25, 60])
def test_a_prompt_may_have_any_length(length):
    model = make()
    prompt = [(7 * i) % 61 for i in range(length)]
    assert list(generate(model, prompt, 20, temperature=0)) == greedy(model, prompt, 20)


def test_a_context_of_one_token_will_do():
    model = make(context=1)
    tokens = list(generate(model, PROMPT, 5, temperature=0))
    last = [PROMPT[-1], *tokens[:-1]]
    assert tokens == [greedy(model, [token], 1)[0] for token in last]


def test_prepared_and_plain_models_agree(quiet):
    expected = list(generate(make(), PROMPT, 40, seed=5))
    model, _ = prepare(make(), precision="fp32")
    assert list(generate(model, PROMPT, 40, seed=5)) == expected


def test_a_model_prepared_in_bf16_writes_what_its_exact_weights_say(quiet):
    expected = list(generate(make(), PROMPT, 40, seed=5))
    model = make()
    model, _ = prepare(model, torch.optim.AdamW(model.parameters()), precision="bf16")
    assert model.layers[0].mlp.up.weight.dtype is torch.bfloat16
    assert list(generate(model, PROMPT, 40, seed=5)) == expected


def test_a_compiled_model_is_known_by_what_it_wraps():
    model = make()
    wrapped = torch.nn.Module()
    wrapped._orig_mod = model
    assert list(generate(wrapped, PROMPT, 4, temperature=0)) == greedy(model, PROMPT, 4)


def test_tokens_are_a_function_of_the_seed():
    model = make()
    torch.manual_seed(1)
    first = list(generate(model, PROMPT, 40, seed=7))
    torch.manual_seed(2)
    assert list(generate(model, PROMPT, 40, seed=7)) == first
    assert list(generate(model, PROMPT, 40, seed=8)) != first


def test_a_shorter_text_is_the_beginning_of_a_longer_one():
    model = make()
    assert list(generate(model, PROMPT, 40))[:15] == list(generate(model, PROMPT, 15))


def test_torch_and_the_model_are_left_as_they_were():
    model = make()
    model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    torch.manual_seed(4)
    state = torch.get_rng_state()
    tokens = generate(model, PROMPT, 40)
    next(tokens)
    assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == (True, False)  # between two tokens
    next(tokens)
    tokens.close()  # type: ignore[attr-defined]
    assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == (True, False)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    model(torch.tensor([PROMPT])).sum().backward()  # no weight has become an inference tensor


def test_autocast_around_it_changes_nothing():
    model = make()
    expected = list(generate(model, PROMPT, 20))
    with torch.autocast("cpu", torch.bfloat16):
        assert list(generate(model, PROMPT, 20)) == expected
        assert torch.is_autocast_enabled("cpu")


def test_stop_ends_the_text_and_is_not_part_of_it():
    model = make()
    tokens = list(generate(model, PROMPT, 30))
    at = next(i for i, token in enumerate(tokens) if i > 3 and token not in tokens[:i])
    assert list(generate(model, PROMPT, 30, stop=tokens[at])) == tokens[:at]


def drawn(logits, top_p, temperature=1.0, count=4000):
    sampler = Sampler(temperature, top_p, seed=0)
    return torch.bincount(torch.tensor([sampler(logits) for _ in range(count)]), minlength=len(logits)) / count


@pytest.mark.parametrize(("top_p", "kept"), [(0.3, 1), (0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.91, 4), (1.0, 4)])
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p, kept):
    shares = torch.tensor([0.1, 0.4, 0.0, 0.2, 0.3])
    order = [1, 4, 3, 0]
    frequencies = drawn(shares.log(), top_p)
    expected = torch.zeros(5)
    expected[order[:kept]] = shares[order[:kept]] / shares[order[:kept]].sum()
    assert set(frequencies.nonzero().flatten().tolist()) == set(order[:kept])
    assert torch.allclose(frequencies, expected, atol=0.035)  # 4 deviations of 4000 draws


@pytest.mark.parametrize("spread", [0.02, 0.5, 4.0])
def test_top_p_of_a_large_vocabulary_keeps_what_sorting_all_of_it_keeps(spread):
    shares = (torch.randn(5000, generator=torch.Generator().manual_seed(0)) * spread).softmax(0)
    totals, tokens = Sampler(1.0, 0.9, 0)._candidates(shares)
    values, order = shares.double().sort(descending=True)
    count = int((values.cumsum(0) < 0.9).sum()) + 1
    assert set(tokens.tolist()) == set(order[:count].tolist())
    assert float(totals[-1]) == pytest.approx(float(values[:count].sum()))


def test_temperature_sharpens_and_flattens():
    logits = torch.tensor([0.7, 0.2, 0.1]).log()
    for temperature in (0.5, 2.0):
        expected = (logits / temperature).softmax(0)
        assert torch.allclose(drawn(logits, 1.0, temperature), expected, atol=0.035)


def test_a_tiny_temperature_takes_the_likeliest():
    assert drawn(torch.tensor([1.0, 3.0, 2.9]), 0.9, 1e-30, count=20).tolist() == [0, 1, 0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_no_numbers_are_one_line(value, temperature):
    model = make(tied=False)
    with torch.no_grad():
        model.head.weight[3, 0] = value
    with pytest.raises(ValueError, match="not finite, so it has diverged"):
        list(generate(model, PROMPT, 3, temperature=temperature))


@pytest.mark.parametrize(
    ("prompt", "options", "line"),
    [
        ([], {}, "expected a prompt of one token or more"),
        ([1, 61], {}, "expected tokens below 61, the model's vocabulary, got 61"),
        ([-1], {}, "got -1"),
        ([1], {"num_tokens": -1}, "from 0 on, got -1"),
        ([1], {"temperature": -0.1}, "temperature from 0 on, got -0.1"),
        ([1], {"temperature": math.nan}, "got nan"),
        ([1], {"top_p": 0.0}, "top_p above 0 and at most 1, got 0.0"),
        ([1], {"top_p": 1.1}, "got 1.1"),
    ],
)
def test_bad_input_is_found_before_the_first_token(prompt, options, line):
    with pytest.raises(ValueError, match=line):
        generate(make(), prompt, **{"num_tokens": 3} | options)


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="expected a Llama, got Linear"):
        generate(torch.nn.Linear(2, 2), [1], 3)
