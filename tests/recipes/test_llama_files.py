import pytest
import torch
from safetensors.torch import save_file

from fullstride import exchange
from fullstride.recipes import config_files, llama_files
from fullstride.recipes.llama import Model, llama
from fullstride.recipes.mlp import mlp
from fullstride.run_folder.folder import RunFolder
from fullstride.train import export
from fullstride.train.checkpoints.store import Snapshot, Store

from ..exchange.saved_models import CHARACTERS, SHAPE, SHAPES, assert_equal, saved_of


def config_of(shape):
    names = ("width", "layers", "heads", "kv_heads", "hidden", "context", "tied", "rope_base", "eps")
    return config_files.to_yaml(llama().replace(model=Model(**{name: shape[name] for name in names})))


def exported(tmp_path, shape, config=None):
    """By `fullstride export`, out of a run that has one checkpoint."""
    with RunFolder.create(tmp_path / "run", config or config_of(shape)) as folder:
        Store(folder.checkpoints).save(Snapshot(7, {"model": saved_of(shape).tensors}, {}))
    export.export(tmp_path / "run", tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3]], ids=["tied", "grouped-untied"])
def test_what_a_run_exported_is_read_to_the_bit(shape, tmp_path):
    shape = shape | {"eps": 1e-6, "rope_base": 500.0}
    path = exported(tmp_path, shape)
    assert llama_files.shape_of(path) == shape
    assert_equal(llama_files.read(path), saved_of(shape))


def test_a_tokenizer_beside_the_file_is_taken_if_it_fits(tmp_path, caplog):
    path = exported(tmp_path, SHAPE)
    assert llama_files.read(path).tokenizer is None
    CHARACTERS.save(tmp_path)
    assert llama_files.read(path).tokenizer.encode("Hello") == CHARACTERS.encode("Hello")
    type(CHARACTERS)("abc").save(tmp_path)
    assert llama_files.read(path).tokenizer is None
    assert "has 263 tokens, the model 271: it is left alone" in caplog.text


def test_the_weights_of_another_recipe_are_refused(tmp_path):
    path = exported(tmp_path, SHAPE, config_files.to_yaml(mlp()))
    with pytest.raises(ValueError, match="expected the weights of a Llama, got those of recipe mlp"):
        llama_files.read(path)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (None, "expected a file of `fullstride export`, with the config of its run, got one without"),
        ({"config": "steps: ["}, "its config.*: expected YAML"),
        ({"config": "recipe: none-such"}, "its config: .*none-such"),
        ({"config": config_of(SHAPE | {"hidden": 44})}, r"expected layers.0.mlp.gate.weight of size \(44, 32\)"),
        ({"config": config_of(SHAPE | {"layers": 1})}, r"a tensor layers.1.* that no Llama has"),
    ],
)
def test_a_file_that_does_not_say_what_it_is_is_refused(metadata, words, tmp_path):
    weights = {name: tensor.clone() for name, tensor in saved_of().tensors.items()}
    save_file(weights, tmp_path / "model.safetensors", metadata)
    with pytest.raises(ValueError, match=words) as refused:
        llama_files.read(tmp_path / "model.safetensors")
    assert str(refused.value).startswith(f"{tmp_path / 'model.safetensors'}")
    assert "\n" not in str(refused.value)


def test_a_model_without_an_embedding_is_refused(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "x.safetensors", {"config": config_of(SHAPE)})
    with pytest.raises(ValueError, match=r"expected the weights of a Llama, got a model without embedding\.weight"):
        llama_files.shape_of(tmp_path / "x.safetensors")


def test_a_tied_model_with_two_different_heads_is_refused(tmp_path):
    weights = {name: tensor.clone() for name, tensor in saved_of().tensors.items()}
    weights["head.weight"] += 1
    save_file(weights, tmp_path / "x.safetensors", {"config": config_of(SHAPE)})
    with pytest.raises(ValueError, match=r"the model is tied, but its head\.weight differs"):
        llama_files.read(tmp_path / "x.safetensors")


def test_a_file_that_only_has_the_name_of_safetensors_gets_one_clear_line(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"Dear diary, it is a fine day.")
    for call in (llama_files.read, llama_files.shape_of):
        with pytest.raises(ValueError, match="expected safetensors, got a file cut short") as refused:
            call(path)
        assert str(refused.value).startswith(f"{path}: ")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["model.bin", "model.gguf", "folder"])
def test_models_of_other_programs_are_read_as_exchange_reads_them(name, tmp_path):
    exchange.write(tmp_path / name, saved_of(tokenizer=CHARACTERS))
    assert llama_files.shape_of(tmp_path / name) == SHAPE
    found = llama_files.read(tmp_path / name)
    assert_equal(found, saved_of())
    assert found.tokenizer.encode("Hello") == CHARACTERS.encode("Hello")


def test_what_a_file_holds_counts_and_not_its_name(tmp_path):
    exchange.write(tmp_path / "model.gguf", saved_of())
    (tmp_path / "model.gguf").rename(tmp_path / "model.safetensors")
    assert llama_files.shape_of(tmp_path / "model.safetensors") == SHAPE


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    path = exported(tmp_path, SHAPE)
    whole = path.read_bytes()
    for size in (3, 8, 9, 500, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="expected safetensors, got a file cut short or damaged"):
            llama_files.read(path)
