import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from fullstride import exchange

from .saved_models import NAMES, SHAPE, SHAPES, assert_equal, logits_of, saved_of, tokens_of

transformers = pytest.importorskip("transformers")


def config_of(shape, **changes):
    return transformers.LlamaConfig(
        vocab_size=shape["vocabulary"], hidden_size=shape["width"], intermediate_size=shape["hidden"],
        num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"],
        max_position_embeddings=shape["context"], tie_word_embeddings=shape["tied"], rms_norm_eps=shape["eps"],
        rope_parameters={"rope_type": "default", "rope_theta": shape["rope_base"]}, **changes,
    )  # fmt: skip


def folder_of(tmp_path, shape=SHAPE):
    exchange.write(tmp_path / "folder", saved_of(shape))
    return tmp_path / "folder"


def change(path, **fields):
    """Fields of a JSON file; None: gone."""
    content = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_what_is_written_is_read_again_to_the_bit(shape, tmp_path):
    shape = shape | {"eps": 3e-6, "rope_base": 500000.0}
    expected = saved_of(shape)
    written = exchange.write(tmp_path / "folder", expected)
    assert [path.name for path in written] == ["config.json", "model.safetensors"]
    assert exchange.shape_of(tmp_path / "folder") == shape
    assert_equal(exchange.read(tmp_path / "folder"), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_transformers_computes_our_logits_from_what_we_wrote(shape, tmp_path):
    shape = shape | {"eps": 1e-3, "rope_base": 500.0}
    saved, tokens = saved_of(shape), tokens_of(shape)
    exchange.write(tmp_path / "folder", saved)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "folder").eval()
    assert model.dtype == torch.float32
    with torch.no_grad():
        found = model(tokens).logits
    torch.testing.assert_close(found, logits_of(saved, tokens), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_we_compute_the_logits_of_transformers_from_what_it_wrote(shape, tmp_path):
    shape, tokens = shape | {"eps": 1e-3, "rope_base": 500.0}, tokens_of(shape)
    torch.manual_seed(2)
    model = transformers.LlamaForCausalLM(config_of(shape, initializer_range=0.2)).eval()
    model.save_pretrained(tmp_path / "folder")
    saved = exchange.read(tmp_path / "folder")
    assert saved.shape == shape
    with torch.no_grad():
        expected = model(tokens).logits
    torch.testing.assert_close(logits_of(saved, tokens), expected, rtol=0, atol=1e-4)


def test_a_model_in_several_files_is_read(tmp_path):
    model = transformers.LlamaForCausalLM(config_of(SHAPE | {"tied": False}))
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("model-0000*-of-*.safetensors"))) > 2
    assert_equal(exchange.read(tmp_path / "parts"), exchange.read(tmp_path / "whole"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_another_dtype_become_fp32(dtype, tmp_path):
    folder = folder_of(tmp_path)
    weights = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    found = exchange.read(folder).tensors["norm.weight"]
    assert found.dtype == torch.float32
    assert torch.equal(found, weights["model.norm.weight"].float())


def test_the_base_of_rotary_positions_is_read_in_the_older_spelling(tmp_path):
    folder = folder_of(tmp_path)
    change(folder / "config.json", rope_parameters=None, rope_theta=700.0)
    assert exchange.shape_of(folder)["rope_base"] == 700.0


def test_a_config_that_leaves_out_what_has_a_default_is_read(tmp_path):
    folder = folder_of(tmp_path, SHAPE | {"tied": False})
    gone = ("num_key_value_heads", "rope_parameters", "rope_theta", "rms_norm_eps", "tie_word_embeddings", "head_dim")
    change(folder / "config.json", **dict.fromkeys(gone))
    assert exchange.shape_of(folder) == SHAPE | {"tied": False, "eps": 1e-6}


def test_a_tied_head_that_is_stored_too_is_read_if_it_is_the_embedding(tmp_path):
    folder = folder_of(tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")
    assert_equal(exchange.read(folder), saved_of())
    save_file(weights | {"lm_head.weight": weights["model.embed_tokens.weight"] + 1}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"tie_word_embeddings is true, but lm_head.weight differs"):
        exchange.read(folder)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "gpt2"}, "expected model_type llama, got 'gpt2'"),
        ({"model_type": None}, "expected model_type llama, got None"),
        ({"attention_bias": True}, "expected attention_bias to be False, got True"),
        ({"mlp_bias": True}, "expected mlp_bias to be False, got True"),
        ({"hidden_act": "gelu"}, "expected hidden_act to be 'silu', got 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "expected quantization_config to be None, got a quantised model"),
        ({"head_dim": 16}, "expected head_dim to be hidden_size / num_attention_heads, 8, got 16"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "plain rotary positions, got rope_scaling 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "expected plain rotary positions, got rope_parameters 'llama3'"),
        ({"rope_parameters": 3}, "expected rope_parameters to be a mapping, got 3"),
        ({"hidden_size": None}, "expected hidden_size among its fields, got none"),
        ({"hidden_size": "32"}, "expected width to be 1 or more, got '32'"),
        ({"num_hidden_layers": 0}, "expected layers to be 1 or more, got 0"),
        ({"num_hidden_layers": 10**12}, "expected layers to be at most 4096, got 1000000000000"),
        ({"max_position_embeddings": 2**40}, "expected context to be at most 2147483647, got 1099511627776"),
        ({"hidden_size": 36}, r"expected a width that is a multiple of 2 x heads \(8\), got 36"),
        ({"num_key_value_heads": 3}, r"expected kv_heads to be a divisor of heads \(4\), got 3"),
        ({"rms_norm_eps": -1}, "expected eps to be above 0, got -1"),
        ({"intermediate_size": 44}, r"gate_proj.weight of size \(44, 32\), got \(40, 32\)"),
        ({"vocab_size": 300}, r"expected model.embed_tokens.weight of size \(300, 32\), got"),
        ({"num_hidden_layers": 3}, "expected a tensor model.layers.2.input_layernorm.weight, got none"),
        ({"num_hidden_layers": 1}, "a tensor model.layers.1.* that no Llama has"),
        ({"tie_word_embeddings": False}, "expected a tensor lm_head.weight, got none"),
    ],
)
def test_a_config_of_a_model_that_cannot_be_is_refused(fields, words, tmp_path):
    folder = folder_of(tmp_path)
    change(folder / "config.json", **fields)
    with pytest.raises(ValueError, match=words) as refused:
        exchange.read(folder)
    assert str(folder) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_damaged_config_is_refused(content, tmp_path):
    folder = folder_of(tmp_path)
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json: expected (a )?JSON"):
        exchange.read(folder)


def test_weights_cut_short_anywhere_are_refused(tmp_path):
    folder = folder_of(tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    for size in (0, 5, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        (folder / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(ValueError, match="expected safetensors, got a file cut short or damaged") as refused:
            exchange.read(folder)
        assert "\n" not in str(refused.value)


def test_weights_of_integers_are_refused(tmp_path):
    folder = folder_of(tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"model.norm.weight": torch.ones(32, dtype=torch.int8)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"expected model.norm.weight as one of F64, F32, F16, BF16, got I8"):
        exchange.read(folder)


def test_a_pickle_beside_the_config_is_not_opened(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: a pickle, which can run any code .* save_pretrained"):
        exchange.read(folder)


def test_a_folder_without_weights_is_refused(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"expected model.safetensors or .* beside config.json, got neither"):
        exchange.read(folder)


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"model.norm.weight": "model-1.safetensors"}, "index.json names it, but there is no such file"),
        ({"model.norm.weight": "../model.safetensors"}, r"expected the name of a file in the folder, got '\.\./"),
        ({}, "expected a weight_map of tensors to files"),
        ({"other": "part.safetensors"}, "expected safetensors, got a file cut short or damaged"),
    ],
)
def test_an_index_that_leads_astray_is_refused(weight_map, words, tmp_path):
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=words):
        exchange.read(folder)


def test_a_header_that_claims_gigabytes_is_refused(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    with pytest.raises(ValueError, match="expected safetensors"):
        exchange.read(folder)
