import sys

import numpy as np
import pytest
import torch

from fullstride import exchange
from fullstride.exchange import gguf_files

from .saved_models import CHARACTERS, NAMES, SHAPE, SHAPES, assert_equal, logits_of, saved_of, tokens_of

gguf = pytest.importorskip("gguf")


def file_of(tmp_path, shape=SHAPE, tokenizer=CHARACTERS):
    exchange.write(tmp_path / "model.gguf", saved_of(shape, tokenizer))
    return tmp_path / "model.gguf"


def rewritten(path, fields=None, tensors=None, without=()):
    """The same file by the package's own writer, with other fields (name: value), tensors, or without some."""
    reader = gguf.GGUFReader(path)
    fields, tensors = fields or {}, tensors or {}
    content = {n: (f.contents(), f.types) for n, f in reader.fields.items() if not n.startswith("GGUF.")}
    data = {t.name: (t.data.copy(), t.tensor_type) for t in reader.tensors}
    writer = gguf.GGUFWriter(path, content.pop("general.architecture")[0])
    for name, (value, types) in content.items():
        if name not in without and name not in fields:
            if types[0] == gguf.GGUFValueType.ARRAY:
                writer.add_array(name, value)
            else:
                writer.add_key_value(name, value, types[0])
    for name, value in fields.items():
        if name == "general.architecture":
            writer.add_string(name, value)
        else:
            {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array,
             bool: writer.add_bool}[type(value)](name, value)  # fmt: skip
    for name, (values, kind) in ({n: t for n, t in data.items() if n not in without} | tensors).items():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_what_is_written_is_read_again_to_the_bit(shape, tmp_path):
    shape = shape | {"eps": 3e-6, "rope_base": 500000.0}
    expected = saved_of(shape)
    assert exchange.write(tmp_path / "model.gguf", expected) == [tmp_path / "model.gguf"]
    assert exchange.shape_of(tmp_path / "model.gguf") == shape
    assert_equal(exchange.read(tmp_path / "model.gguf"), expected)


def test_the_packages_own_reader_finds_every_field(tmp_path):
    shape = SHAPE | {"kv_heads": 2}
    reader = gguf.GGUFReader(file_of(tmp_path, shape))
    found = {name: field.contents() for name, field in reader.fields.items()}
    expected = {
        "general.architecture": "llama", "general.type": "model", "general.file_type": 0,
        "llama.vocab_size": CHARACTERS.size, "llama.embedding_length": 32, "llama.block_count": 2,
        "llama.feed_forward_length": 40, "llama.context_length": 24,
        "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.rope.dimension_count": 8,
        "llama.rope.freq_base": 10000.0, "tokenizer.ggml.model": "llama", "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False, "tokenizer.ggml.add_space_prefix": True,
    }  # fmt: skip
    assert found.items() >= expected.items()
    assert found["llama.attention.layer_norm_rms_epsilon"] == np.float32(1e-5)
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert tokens[:4] == ["<unk>", "<s>", "</s>", "<0x00>"]
    assert "\u2581" in tokens[259:]
    assert types[:4] == [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, gguf.TokenType.BYTE]
    assert set(types[259:]) == {gguf.TokenType.NORMAL}
    assert len(tokens) == len(types) == len(found["tokenizer.ggml.scores"]) == CHARACTERS.size


@pytest.mark.parametrize("tied", [True, False])
def test_the_packages_own_reader_finds_every_tensor(tied, tmp_path):
    reader = gguf.GGUFReader(file_of(tmp_path, SHAPE | {"tied": tied}))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    layer = ["input_layernorm", "post_attention_layernorm"]
    layer += [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    theirs = [f"model.layers.{i}.{name}" for i in range(2) for name in layer] + ["model.embed_tokens", "model.norm"]
    theirs += [] if tied else ["lm_head"]
    assert {t.name for t in reader.tensors} == {names.get_name(name) + ".weight" for name in theirs}
    assert {t.tensor_type for t in reader.tensors} == {gguf.GGMLQuantizationType.F32}
    assert next(t.shape.tolist() for t in reader.tensors if t.name == "blk.1.ffn_down.weight") == [40, 32]


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_transformers_computes_our_logits_from_the_file(shape, tmp_path):
    """By its own map of names and its own order of rotary pairs. from_pretrained() would need accelerate as well."""
    transformers = pytest.importorskip("transformers")
    loading = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    path, tokens = file_of(tmp_path, shape), tokens_of(shape)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**loading.load_gguf_checkpoint(path)["config"]))
    assert model.config.tie_word_embeddings == shape["tied"]
    weights = loading.load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"] if shape["tied"] else [], [])
    model.tie_weights()
    with torch.no_grad():
        found = model.eval()(tokens).logits
    torch.testing.assert_close(found, logits_of(saved_of(shape), tokens), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_weights_in_fewer_bits_are_widened(kind, tmp_path):
    path, kind = file_of(tmp_path), gguf.GGMLQuantizationType[kind]
    name = "blk.1.attn_output.weight"
    values = next(t.data for t in gguf.GGUFReader(path).tensors if t.name == name)
    rounded = gguf.quantize(values, kind)
    rewritten(path, tensors={name: (rounded, kind)})
    found = exchange.read(path).tensors["layers.1.attention.output.weight"]
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.from_numpy(gguf.dequantize(rounded, kind)))
    assert not torch.equal(found, torch.from_numpy(values.copy()))


def test_weights_that_were_read_may_be_changed_and_the_file_stays(tmp_path):
    path = file_of(tmp_path)
    before = path.read_bytes()
    exchange.read(path).tensors["norm.weight"].zero_()
    assert path.read_bytes() == before


def test_a_model_without_a_tokenizer_is_read_without_one(tmp_path):
    assert exchange.read(file_of(tmp_path, tokenizer=None)).tokenizer is None


def test_a_tokenizer_of_another_kind_is_left_out_and_the_log_says_so(tmp_path, caplog):
    path = rewritten(file_of(tmp_path), {"tokenizer.ggml.model": "gpt2"})
    assert exchange.read(path).tokenizer is None
    assert "its tokenizer is of kind gpt2, not llama, so the model is read without it" in caplog.text


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    path = file_of(tmp_path)
    whole = path.read_bytes()
    for size in {4, 5, 7, 8, 9, 23, 24, 25, 31, 40, *range(50, len(whole), 1999), len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"model\.gguf: expected ") as refused:
            exchange.read(path)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("field", ["scores", "token_type", "tokens"])
def test_an_array_of_a_damaged_length_is_refused_at_once(field, tmp_path):
    path = file_of(tmp_path)
    content = bytearray(path.read_bytes())
    length = content.index(f"tokenizer.ggml.{field}".encode()) + len(f"tokenizer.ggml.{field}") + 8
    assert int.from_bytes(content[length : length + 8], "little") == CHARACTERS.size
    content[length + 7] = 0x10
    path.write_bytes(content)
    with pytest.raises(ValueError, match="expected GGUF, got a file that is cut short or damaged"):
        exchange.read(path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"general.architecture": "gpt2"}, "expected architecture llama, got 'gpt2'"),
        ({"llama.attention.head_count": 5}, r"expected a width that is a multiple of 2 x heads \(10\), got 32"),
        ({"llama.attention.head_count_kv": [4, 4]}, r"expected kv_heads to be 1 or more, got \[4, 4\]"),
        ({"llama.block_count": 0}, "expected layers to be 1 or more, got 0"),
        ({"llama.block_count": 2**32 - 1}, "expected layers to be at most 4096, got 4294967295"),
        ({"llama.block_count": 3}, "expected a tensor blk.2.attn_norm.weight, got none"),
        ({"llama.block_count": 1}, "a tensor blk.1.* that no Llama has"),
        ({"llama.feed_forward_length": 44}, r"expected blk.0.ffn_gate.weight of size \(44, 32\), got \(40, 32\)"),
        ({"llama.rope.dimension_count": 4}, "expected rope.dimension_count 8, as width / heads, got 4"),
        ({"llama.attention.key_length": 16}, "expected attention.key_length 8, as width / heads, got 16"),
        ({"llama.rope.scaling.type": "yarn"}, "expected plain rotary positions, got scaling of type 'yarn'"),
        ({"llama.expert_count": 8}, "expected a model without experts, got 8"),
        ({"tokenizer.ggml.scores": [0.0, 1.0]}, "expected as many tokens as scores and types, got 271, 2 and 271"),
    ],
)
def test_a_file_of_a_model_that_cannot_be_is_refused(fields, words, tmp_path):
    path = rewritten(file_of(tmp_path), fields)
    with pytest.raises(ValueError, match=words) as refused:
        exchange.read(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("llama.embedding_length", "expected llama.embedding_length in its metadata, got none"),
        ("llama.attention.layer_norm_rms_epsilon", "expected llama.attention.layer_norm_rms_epsilon in its metadata"),
        ("token_embd.weight", "expected a tensor token_embd.weight, got none"),
        ("blk.0.attn_k.weight", "expected a tensor blk.0.attn_k.weight, got none"),
        ("tokenizer.ggml.tokens", "expected tokenizer.ggml.tokens in its metadata, got none"),
    ],
)
def test_a_file_that_lacks_something_is_refused(gone, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        exchange.read(rewritten(file_of(tmp_path), without=[gone]))


def test_scaled_rotary_positions_are_refused(tmp_path):
    kind = gguf.GGMLQuantizationType.F32
    path = rewritten(file_of(tmp_path), tensors={"rope_freqs.weight": (np.ones(4, np.float32), kind)})
    with pytest.raises(ValueError, match=r"expected plain rotary positions, got scaled ones"):
        exchange.read(path)


def test_a_vocabulary_that_is_not_the_models_is_refused(tmp_path):
    path = file_of(tmp_path)
    reader = gguf.GGUFReader(path)
    fields = {f"tokenizer.ggml.{n}": reader.fields[f"tokenizer.ggml.{n}"].contents()[:-1]
              for n in ("tokens", "scores", "token_type")}  # fmt: skip
    with pytest.raises(ValueError, match="expected a tokenizer of 271 tokens, as the model has, got its own with 270"):
        exchange.read(rewritten(path, fields))


@pytest.mark.parametrize(("version", "words"), [(1, "version 1"), (3 << 24, "one of .* the other byte order")])
def test_another_version_is_refused(version, words, tmp_path):
    path = file_of(tmp_path)
    content = bytearray(path.read_bytes())
    content[4:8] = version.to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"expected GGUF of version 2 or 3, got {words}"):
        exchange.read(path)


def test_without_the_package_the_line_says_how_to_get_it(tmp_path, monkeypatch):
    path = file_of(tmp_path)
    monkeypatch.setitem(sys.modules, "gguf", None)
    for call in (lambda: exchange.read(path), lambda: gguf_files.write(tmp_path / "other.gguf", saved_of())):
        with pytest.raises(ValueError, match=r"gguf is not installed; get it with: pip install 'fullstride\[gguf\]'"):
            call()
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]
