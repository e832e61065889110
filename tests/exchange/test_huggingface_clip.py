import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from fullstride.exchange import huggingface_clip

from .clip_models import (
    CHARACTERS,
    NAMES,
    SHAPE,
    SHAPES,
    change,
    folder_of,
    inputs_of,
    logits_of,
    model_of,
    tensors_of,
    their_logits,
)

transformers = pytest.importorskip("transformers")


def assert_equal(found, shape, tensors):
    assert found.shape == shape
    assert list(found.tensors) == list(tensors)
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == torch.float32
        assert torch.equal(found.tensors[name], tensor), name


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_what_is_written_is_read_again_to_the_bit(shape, tmp_path):
    tensors = tensors_of(shape)
    written = huggingface_clip.write(tmp_path / "folder", shape, tensors)
    assert [path.name for path in written] == ["config.json", "model.safetensors", "preprocessor_config.json"]
    assert sorted(written) == sorted((tmp_path / "folder").iterdir())
    assert huggingface_clip.shape_of(tmp_path / "folder") == shape
    found = huggingface_clip.read(tmp_path / "folder")
    assert found.tokenizer is None
    assert_equal(found, shape, tensors)


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_transformers_computes_our_logits_from_what_we_wrote(shape, tmp_path):
    tensors, inputs = tensors_of(shape), inputs_of(shape)
    expected = logits_of(shape, tensors, *inputs)
    assert expected.std() > 0.5
    huggingface_clip.write(tmp_path / "folder", shape, tensors)
    model, report = transformers.CLIPModel.from_pretrained(tmp_path / "folder", output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(their_logits(model, *inputs), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_we_compute_the_logits_of_transformers_from_what_it_wrote(shape, tmp_path):
    model, inputs = model_of(shape), inputs_of(shape)
    model.save_pretrained(tmp_path / "folder")
    found = huggingface_clip.read(tmp_path / "folder")
    assert found.shape == shape
    expected = their_logits(model, *inputs)
    assert expected.std() > 0.5
    torch.testing.assert_close(logits_of(shape, found.tensors, *inputs), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
def test_an_old_config_with_eos_2_ends_at_the_highest_id(activation, tmp_path):
    shape = SHAPE | {"activation": activation}
    model, inputs = model_of(shape, eos=2), inputs_of(shape)
    inputs[0][:, 0] = 2  # what the config says is no end
    model.save_pretrained(tmp_path / "folder")
    found = huggingface_clip.read(tmp_path / "folder")
    assert found.shape == shape
    ours = logits_of(shape, found.tensors, *inputs)
    torch.testing.assert_close(ours, their_logits(model, *inputs), rtol=0, atol=1e-4)


def test_what_dropout_and_chunk_a_model_was_trained_with_does_not_matter(tmp_path):
    shape = SHAPE | {"dropout": 0.1, "chunk": 2, "end": None}
    huggingface_clip.write(tmp_path / "folder", shape, tensors_of(SHAPE))
    assert huggingface_clip.shape_of(tmp_path / "folder") == SHAPE


def test_a_scale_above_the_models_limit_is_written_as_the_limit(tmp_path):
    tensors, inputs = tensors_of(SHAPE), inputs_of(SHAPE)
    tensors["log_scale"].fill_(6.0)
    huggingface_clip.write(tmp_path / "folder", SHAPE, tensors)
    found = their_logits(transformers.CLIPModel.from_pretrained(tmp_path / "folder"), *inputs)
    torch.testing.assert_close(found, logits_of(SHAPE, tensors, *inputs), rtol=0, atol=1e-4)
    assert tensors["log_scale"] == 6.0


def test_a_scale_that_will_be_limited_is_told(tmp_path, caplog):
    folder = folder_of(tmp_path)
    huggingface_clip.read(folder)
    assert not caplog.text
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"logit_scale": torch.tensor(5.0)}, folder / "model.safetensors")
    huggingface_clip.read(folder)
    assert "its logits are scaled by 148.413; here by at most 100" in caplog.text


def test_a_model_in_several_files_is_read(tmp_path):
    model = model_of(SHAPE)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("model-0000*-of-*.safetensors"))) > 2
    whole = huggingface_clip.read(tmp_path / "whole")
    assert_equal(huggingface_clip.read(tmp_path / "parts"), whole.shape, whole.tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_another_dtype_become_fp32(dtype, tmp_path):
    folder = folder_of(tmp_path)
    weights = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    found = huggingface_clip.read(folder).tensors["text.norm.bias"]
    assert found.dtype == torch.float32
    assert torch.equal(found, weights["text_model.final_layer_norm.bias"].float())


def test_the_numbers_of_positions_in_older_files_are_left_out(tmp_path):
    folder = folder_of(tmp_path)
    weights = load_file(folder / "model.safetensors")
    for name in ("text_model", "vision_model"):
        weights[f"{name}.embeddings.position_ids"] = torch.arange(12).view(1, 12)
    save_file(weights, folder / "model.safetensors")
    assert_equal(huggingface_clip.read(folder), SHAPE, tensors_of(SHAPE))


def shape_by_transformers(folder):
    config = transformers.CLIPConfig.from_pretrained(folder)
    text, vision = config.text_config, config.vision_config
    return {
        "vocabulary": text.vocab_size, "image": vision.image_size, "patch": vision.patch_size,
        "vision_width": vision.hidden_size, "vision_layers": vision.num_hidden_layers,
        "vision_heads": vision.num_attention_heads, "context": text.max_position_embeddings,
        "text_width": text.hidden_size, "text_layers": text.num_hidden_layers, "text_heads": text.num_attention_heads,
        "space": config.projection_dim, "end": text.eos_token_id, "activation": text.hidden_act,
    }  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"text_config": None, "vision_config": None},
        {"text_config": {"num_hidden_layers": 3}, "vision_config": {"patch_size": 16}, "projection_dim": 256},
        {"text_config": {"num_hidden_layers": 3}, "text_config_dict": {"num_attention_heads": 4}},
        {"vision_config": {"patch_size": 14}, "vision_config_dict": {"hidden_size": 1024, "intermediate_size": 4096,
                                                                     "num_attention_heads": 16}},
    ],
)  # fmt: skip
def test_a_config_that_leaves_out_what_has_a_default_is_read_as_transformers_does(fields, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip"} | fields))
    assert huggingface_clip.shape_of(tmp_path) == shape_by_transformers(tmp_path)


ODD = [
    (None, {"model_type": "siglip"}, "expected model_type clip, got 'siglip'"),
    (None, {"model_type": None}, "expected model_type clip, got None"),
    (None, {"quantization_config": {"bits": 4}}, "expected weights of floating point, got a quantised model"),
    (None, {"text_config": 3}, "expected text_config to be a mapping, got 3"),
    (None, {"projection_dim": 0}, "expected space to be from 1 to 1048576, got 0"),
    ("text_config", {"intermediate_size": 95}, r"differs: expected intermediate_size of text_config to be .*, 96, got"),
    ("vision_config", {"intermediate_size": 65}, r"differs: expected intermediate_size of vision_config .* 64, got 65"),
    ("vision_config", {"layer_norm_eps": 1e-6}, "differs: expected layer_norm_eps of vision_config .*, got 1e-06"),
    ("text_config", {"hidden_act": "relu"}, "differs: expected hidden_act of text_config .* got 'relu'"),
    ("text_config", {"hidden_act": "quick_gelu"}, "differs: expected hidden_act to be the same .* quick_gelu and gelu"),
    ("vision_config", {"num_channels": 1}, "differs: expected num_channels to be 3, got 1"),
    ("vision_config", {"image_size": [16, 16]}, r"expected image to be from 1 to 65536, got \[16, 16\]"),
    ("vision_config", {"patch_size": 17}, "expected a patch of at most 16, the image, got 17"),
    ("vision_config", {"num_attention_heads": 3}, r"vision_width to be a multiple of its heads \(3\), got 16"),
    ("text_config", {"num_hidden_layers": 10**9}, "expected text_layers to be from 1 to 4096, got 1000000000"),
    ("text_config", {"hidden_size": "24"}, "expected text_width to be from 1 to 1048576, got '24'"),
    ("text_config", {"vocab_size": "9", "eos_token_id": 2}, "expected vocabulary to be from 1 to 1048576, got '9'"),
    ("text_config", {"eos_token_id": [7]}, r"end of captions \(eos_token_id\) to be from 0 to \d+, got \[7\]"),
    ("text_config", {"eos_token_id": 4000}, r"end of captions \(eos_token_id\) to be from 0 to \d+, got 4000"),
    ("text_config", {"vocab_size": 300}, r"text_model.embeddings.token_embedding.weight of size \(300, 24\), got"),
    ("text_config", {"num_hidden_layers": 2}, "expected a tensor text_model.encoder.layers.1.* got none"),
    ("vision_config", {"num_hidden_layers": 1}, "a tensor vision_model.encoder.layers.1.* that no CLIP has"),
    ("vision_config", {"image_size": 24}, r"position_embedding.weight of size \(10, 16\), got \(5, 16\)"),
]


@pytest.mark.parametrize(("section", "fields", "words"), ODD)
def test_a_config_of_a_model_that_cannot_be_is_refused(section, fields, words, tmp_path):
    folder = folder_of(tmp_path)
    change(folder / "config.json", section, **fields)
    with pytest.raises(ValueError, match=words) as refused:
        huggingface_clip.read(folder)
    assert str(folder) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_damaged_config_is_refused(content, tmp_path):
    folder = folder_of(tmp_path)
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json: expected (a )?JSON"):
        huggingface_clip.read(folder)


def test_what_is_no_folder_of_a_model_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match=r"expected a Hugging Face folder of a CLIP, got none"):
            huggingface_clip.read(path)


def test_weights_cut_short_anywhere_are_refused(tmp_path):
    folder = folder_of(tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    for size in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        (folder / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"model\.safetensors: expected safetensors, got a file cut short"):
            huggingface_clip.read(folder)


def test_a_tensor_more_or_less_is_refused(tmp_path):
    folder = folder_of(tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"visual_projection.bias": torch.zeros(20)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"a tensor visual_projection.bias that no CLIP has: it would be lost"):
        huggingface_clip.read(folder)
    del weights["logit_scale"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ValueError, match="expected a tensor logit_scale, got none; the file is incomplete"):
        huggingface_clip.read(folder)


def test_a_pickle_is_not_opened(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: a pickle, which can run any code .* save_pretrained"):
        huggingface_clip.read(folder)


def test_mean_and_deviation_of_pictures_are_kept(tmp_path):
    mean, std = (0.48, 0.45, 0.4), (0.26, 0.27, 0.28)
    huggingface_clip.write(tmp_path / "folder", SHAPE, tensors_of(SHAPE), mean=mean, std=std)
    assert huggingface_clip.normalisation_of(tmp_path / "folder") == (mean, std)
    (tmp_path / "folder" / "preprocessor_config.json").unlink()
    assert huggingface_clip.normalisation_of(tmp_path / "folder") is None
    new = {"image_processor": {"image_mean": mean, "image_std": std}}  # as transformers 5 writes it
    (tmp_path / "folder" / "processor_config.json").write_text(json.dumps(new))
    assert huggingface_clip.normalisation_of(tmp_path / "folder") == (mean, std)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image_mean": [1, 2]}, r"expected image_mean to be three numbers, got \[1, 2\]"),
        ({"image_std": "x"}, "expected image_std to be three numbers, got 'x'"),
        ({"image_std": [1, 0, 1]}, r"expected image_std to be above 0, got \[1, 0, 1\]"),
    ],
)
def test_a_damaged_mean_or_deviation_is_refused(fields, words, tmp_path):
    folder = folder_of(tmp_path)
    change(folder / "preprocessor_config.json", **fields)
    with pytest.raises(ValueError, match=words):
        huggingface_clip.normalisation_of(folder)


@pytest.mark.parametrize(
    ("shape", "changes", "words"),
    [
        (SHAPE, {"text.norm.bias": torch.zeros(3)}, r"expected text.norm.bias of size \(24,\), got \(3,\)"),
        (SHAPE, {"other": torch.zeros(3)}, "a tensor other that no CLIP has"),
        (SHAPE, {"text.norm.bias": torch.zeros(24).half()}, "expected text.norm.bias in float32, got float16"),
        (SHAPE | {"end": 2}, {}, "transformers takes an end of captions that is 2 for the highest id"),
        (SHAPE | {"activation": "relu"}, {}, "expected activation to be gelu or quick_gelu, got 'relu'"),
    ],
)
def test_nothing_is_written_of_a_model_that_cannot_be(shape, changes, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        huggingface_clip.write(tmp_path / "folder", shape, tensors_of(SHAPE) | changes)
    assert not list(tmp_path.iterdir())


def test_nothing_is_half_written(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(CHARACTERS.tokenizer.__class__, "save", fail)
    with pytest.raises(OSError, match=r"cannot write .*folder: No space left"):
        folder_of(tmp_path, CHARACTERS)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_replaced_only_if_told(tmp_path):
    folder = folder_of(tmp_path, CHARACTERS)
    before = (folder / "model.safetensors").read_bytes()
    tensors = tensors_of(SHAPE, seed=1)
    with pytest.raises(ValueError, match="folder is there already: give another name, or --force to replace it"):
        huggingface_clip.write(folder, SHAPE, tensors)
    assert (folder / "model.safetensors").read_bytes() == before
    huggingface_clip.write(folder, SHAPE, tensors, replace=True)
    found = huggingface_clip.read(folder)
    assert found.tokenizer is None
    assert_equal(found, SHAPE, tensors)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"a folder with more than a model, such as notes\.txt"):
        huggingface_clip.write(folder, SHAPE, tensors, replace=True)
