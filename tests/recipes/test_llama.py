import math
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch

from fullstride import recipes, tokens
from fullstride.data.order import Order
from fullstride.models import llama
from fullstride.recipes import config_files
from fullstride.recipes.llama import SIZES, LlamaConfig, Model
from fullstride.run_folder import metrics
from fullstride.train import evaluation
from fullstride.train.errors import Diverged
from fullstride.train.export import export_as_others
from fullstride.train.hooks import Hook
from fullstride.train.trainer import Trainer

TINY = {"width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 64, "context": 16}
VERSE = "From fairest creatures we desire increase,\nThat thereby beauty's rose might never die,\n"


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A folder of two texts."""
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / "data"))
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.txt").write_text(VERSE * 12, encoding="utf-8")
    (folder / "two.txt").write_text(VERSE.upper() * 8, encoding="utf-8")
    return folder


def tiny(texts: Path, **changes: object) -> LlamaConfig:
    base = recipes.llama_char().replace(
        steps=6, micro_batch=4, model=TINY, data={"path": str(texts)}, samples={"tokens": 20}, threads=2,
        evaluation={"every": 3, "batch": 8}, checkpoints={"every": 3}, logging={"every": 2}, precision="fp32",
    )  # fmt: skip
    return base.replace(**changes)


@pytest.mark.parametrize(
    ("size", "vocabulary", "expected"),
    [("stories260K", 512, 260_032), ("stories15M", 32000, 15_191_712), ("stories42M", 32000, 41_689_600),
     ("stories110M", 32000, 109_529_856)],
)  # fmt: skip
def test_the_sizes_have_as_many_parameters_as_their_names_say(size, vocabulary, expected):
    with torch.device("meta"):
        model = llama.build(vocabulary=vocabulary, **Model(size=size).shape())
    assert sum(p.numel() for p in model.parameters()) == expected


def test_fields_replace_those_of_the_size():
    shape = Model(size="stories110M", context=256, heads=6).shape()
    assert (shape["width"], shape["context"], shape["heads"], shape["kv_heads"]) == (768, 256, 6, 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 100}, r"model\.width: expected a multiple of 2 x heads \(12\), got 100"),
        ({"kv_heads": 4}, r"model\.kv_heads: expected a divisor of heads \(6\), got 4"),
        ({"context": 0}, r"model\.context: expected 1 or more, got 0"),
    ],
)
def test_a_shape_that_no_llama_has_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Model(**changes)


def test_a_run_trains_samples_and_is_whole_in_its_folder(texts, tmp_path):
    result = Trainer(tiny(texts), tmp_path / "run").fit()
    rows = metrics.read(tmp_path / "run")
    train = [row for row in rows if row["kind"] == "train"]
    samples = [row for row in rows if row.get("event") == "sample"]
    assert [row["step"] for row in samples] == [3, 6]
    assert all(isinstance(row["text"], str) for row in samples)
    assert train[-1]["per_second"] == pytest.approx(4 * 16 * 1000 / train[-1]["step_ms"])  # in tokens
    assert tokens.load(tmp_path / "run").decode(tokens.load(tmp_path / "run").encode(VERSE)) == VERSE
    assert result.best["loss"] < math.log(259 + 60)


def test_flops_are_six_a_weight_and_token_and_half_of_attention_and_an_addition_an_element_of_the_embedding(texts):
    task = tiny(texts).task()
    model = task.build_model()
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    attention = 6 * TINY["context"] * TINY["width"] * TINY["layers"]
    assert task.flops(model) == TINY["context"] * (6 * weights + attention + TINY["width"])


def test_validation_counts_every_token_once(texts):
    task = tiny(texts).task()
    torch.manual_seed(0)
    model = task.build_model().eval()
    by_trainer = evaluation.run(model, task, 3)["loss"]
    spans = task.valid_data.files  # type: ignore[attr-defined]
    stream = np.concatenate([span.map() for span in spans]).astype(np.int64)
    losses = []
    context = TINY["context"]
    with torch.no_grad():
        for target in range(1, len(stream)):
            window = min((target - 1) // context * context, len(stream) - 1 - context)
            logits = model(torch.from_numpy(stream[None, window : target]))
            losses.append(torch.nn.functional.cross_entropy(logits[0, -1], torch.tensor(stream[target])).item())
    assert by_trainer == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.parametrize("name", ["model.bin", "model.gguf", "folder", "model.safetensors"])
def test_a_run_starts_from_exported_weights_to_the_bit(texts, tmp_path, name):
    run = tmp_path / "run"
    Trainer(tiny(texts, model={"tied": False}), run).fit()
    target = tmp_path / "out" / name
    target.parent.mkdir()
    if name.endswith(".safetensors"):
        from fullstride.train.export import export

        export(run, target)
        tokens.load(run).save(target.parent)
    else:
        export_as_others(run, target)
    config = recipes.llama().replace(init=str(target), data={"path": str(texts)}).located()
    assert config.model.shape() == tiny(texts, model={"tied": False}).model.shape()
    assert config_files.from_yaml(config_files.to_yaml(config)) == config
    task = config.task()
    model = task.build_model()
    task.load_weights(model)
    best = evaluation.find(run).tensors["model"]
    assert all(torch.equal(tensor, best[key]) for key, tensor in model.state_dict().items())
    assert task.tokenizer.encode("beauty") == tokens.load(run).encode("beauty")


@pytest.mark.parametrize("given", [True, False], ids=["a tokenizer given", "that of the file"])
def test_a_fine_tuned_run_goes_on_without_the_files_it_started_from(texts, tmp_path, given):
    Trainer(tiny(texts), tmp_path / "first").fit()
    target, characters = tmp_path / "model.gguf", tmp_path / "first" / "characters.json"
    export_as_others(tmp_path / "first", target)
    base = recipes.llama().replace(
        init=str(target), data={"path": str(texts)} | ({"tokenizer": str(characters)} if given else {}), steps=3,
        micro_batch=4, threads=2, evaluation={"every": 0, "batch": 8}, samples={"tokens": 0}, precision="fp32",
    )  # fmt: skip
    Trainer(base, tmp_path / "second").fit()
    target.unlink()
    characters.unlink()
    text = (tmp_path / "second" / "config.yaml").read_text()
    (tmp_path / "second" / "config.yaml").write_text(text.replace("steps: 3\n", "steps: 4\n"))
    assert Trainer.resume(tmp_path / "second").fit().steps == 4
    assert math.isfinite(evaluation.evaluate(tmp_path / "second")["loss"])


def test_a_sample_leaves_out_tokens_that_the_tokenizer_does_not_have(texts):
    task = tiny(texts).task()
    task.vocabulary = 4 * task.tokenizer.size  # as of a file to start from
    assert isinstance(task.sample(task.build_model()), str)


def test_a_model_that_has_diverged_writes_no_sample_and_the_run_goes_on(texts, tmp_path):
    class Spoil(Hook):
        def on_start(self, trainer):
            with torch.no_grad():
                trainer.model.norm.weight.fill_(float("nan"))

    config = tiny(texts, steps=2, evaluation={"every": 1}, max_nonfinite=2, checkpoints={"every": 0})
    with pytest.raises(Diverged, match="2 steps in a row had a gradient that is not finite"):
        Trainer(config, tmp_path / "run", [Spoil()]).fit()
    assert not [row for row in metrics.read(tmp_path / "run") if row.get("event") == "sample"]


def test_fields_that_the_file_contradicts_are_refused(texts, tmp_path):
    Trainer(tiny(texts), tmp_path / "run").fit()
    export_as_others(tmp_path / "run", tmp_path / "model.bin")
    with pytest.raises(ValueError, match=r"model\.width: expected 32, as in .*model\.bin, got 64"):
        recipes.llama().replace(init=str(tmp_path / "model.bin"), model={"width": 64, "heads": 4}).located()
    shorter = recipes.llama().replace(init=str(tmp_path / "model.bin"), model={"context": 8}).located()
    assert shorter.model.shape()["context"] == 8


def test_a_text_that_was_changed_is_told_when_a_run_goes_on(texts, tmp_path):
    Trainer(tiny(texts, steps=3), tmp_path / "run").fit()
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("steps: 3\n", "steps: 4\n"))
    text = texts / "one.txt"
    text.write_text(text.read_text().replace("fairest", "darkest"))
    Trainer.resume(tmp_path / "run").fit()
    assert "not bit for bit the run as it was: data was" in (tmp_path / "run" / "log.txt").read_text()


def test_recomputed_layers_give_the_same_gradients(texts):
    task = tiny(texts).task()
    batch = task.train_data.batch(*Order(len(task.train_data), 4).micro_batch(0))
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = llama.build(**task.stock().arguments | {"recompute": recompute})
        llama.loss(model, batch).backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_every_size_can_be_wished_for():
    assert get_args(get_type_hints(Model)["size"]) == tuple(SIZES)


def test_a_file_to_start_from_is_checked_also_where_every_field_is_given(texts, tmp_path):
    Trainer(tiny(texts, steps=1), run=tmp_path / "run").fit()
    export_as_others(tmp_path / "run", tmp_path / "model.bin")
    base = recipes.llama().replace(init=str(tmp_path / "model.bin"), data={"path": str(texts)})
    assert base.replace(model=TINY).located() == base.located()
    for wish in (TINY | {"width": 64}, {"tied": False}, {"rope_base": 5000.0}):
        with pytest.raises(ValueError, match=r"model\.(width|tied|rope_base): expected .*, as in .*model\.bin, got"):
            base.replace(model=wish).located()
    as_in_a_run = base.replace(model=TINY, data={"tokenizer": str(tmp_path / "run" / "characters.json")})
    with pytest.raises(ValueError, match="do not fit the model that is asked for; leave --model and"):
        Trainer(as_in_a_run.replace(model={"width": 64}), run=tmp_path / "other").fit()


def test_tokens_of_nanogpt_may_be_more_than_bpe_pieces(tmp_path):
    for name in ("train.bin", "val.bin"):
        np.arange(50000, 50257, dtype=np.uint16).tofile(tmp_path / name)
    config = recipes.llama().replace(model=TINY, data={"path": str(tmp_path), "vocabulary": 50257})
    assert config.task().vocabulary == 50257
    with pytest.raises(ValueError, match=r"token 50000 .* expected one below 4096.*give that or --data\.vocab"):
        config.replace(data={"vocabulary": 4096}).task()
