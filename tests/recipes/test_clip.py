"""Recipe clip: its defaults, its data, wrong captions, mining, scores, and what a run leaves behind."""

import re
from pathlib import Path

import pytest
import torch

from fullstride import recipes
from fullstride.cli.runs import write_report
from fullstride.data.pictures.scenes import Scenes
from fullstride.models import clip
from fullstride.recipes.clip import Data, Model, Negatives, mining, retrieval
from fullstride.recipes.clip.task import ClipTask
from fullstride.run_folder import metrics
from fullstride.train import dry_run, evaluation
from fullstride.train.trainer import Trainer

from ..train.runs import assert_same_tensors, final, losses
from .tiny_clip import tiny, tiny_run

FIGURES = ("recall_1", "recall_5", "recall_10", "image_recall_1", "easy_accuracy", "medium_accuracy", "hard_accuracy")


def rows(run, kind):
    return [row for row in metrics.read(run) if row["kind"] == kind]


# ---- the config ------------------------------------------------------------------------------------------------------


def test_base_has_the_defaults_that_were_asked_for():
    config = recipes.clip()
    assert (config.micro_batch, config.epochs) == (12, 15)
    assert config.checkpoints.every == "5 epochs"
    shape = config.model.shape()
    assert (shape["image"], shape["vision_layers"], shape["text_layers"], shape["context"]) == (224, 12, 6, 77)
    assert config.data.name == "scenes"
    assert config.data.num_train == 10_000


@pytest.mark.parametrize(
    ("section", "changes", "line"),
    [
        (Model, {"patch": 5}, r"model\.image: expected a multiple of patch \(5\), got 224"),
        (Model, {"vision_width": 100, "vision_heads": 3}, r"model\.vision_width: expected a multiple of vision_heads"),
        (Model, {"context": 2}, r"model\.context: expected 3 or more tokens, got 2"),
        (Model, {"chunk": 0}, r"model\.chunk: expected 1 or more, got 0"),
        (Data, {"name": "pairs"}, r"data\.path: expected a folder of pictures and captions, got none"),
        (Data, {"path": "there"}, r"data\.path: expected none, as scenes are drawn \(--data.name pairs reads it\)"),
        (Data, {"valid_share": 1.0}, r"data\.valid_share: expected above 0, below 1"),
        (Negatives, {"hard": 1.5}, r"negatives\.hard: expected a share from 0 to 1, got 1\.5"),
        (Negatives, {"pool": 1}, r"negatives\.pool: expected 2 or more pairs"),
    ],
)
def test_values_that_cannot_be_are_refused(section, changes, line):
    with pytest.raises(ValueError, match=line):
        section(**changes)


# ---- the data --------------------------------------------------------------------------------------------------------


def test_training_and_held_out_scenes_differ():
    task = tiny().task()
    train, valid = task.train_data.source, task.valid_data.source
    assert isinstance(train, Scenes)
    assert isinstance(valid, Scenes)
    assert not {train.plan(i) for i in range(24)} & {valid.plan(i) for i in range(10)}


def test_it_says_how_much_data_there_is_and_what_a_pair_takes():
    said = tiny().task().describe()
    data, number = "24 pairs to train on, 10 held out", r"\d+\.\d\d ms"
    assert re.fullmatch(rf"{data}, \d+ tokens; a pair takes {number} to load and {number} to preprocess", said)


def test_pieces_of_bpe_are_as_many_as_the_captions_are_good_for():
    task = tiny(data={"tokenizer": "bpe", "vocabulary": 30000, "num_train": 400}).task()
    assert 400 < task.captions.vocabulary < 5000
    caption = task.train_data.source.caption(0)
    assert len(task.captions.encode(caption, 77)) < 77


def test_evaluations_read_a_wrong_caption_of_each_kind_among_as_many_candidates_each_time():
    task = tiny().task()
    batches = list(task.valid_batches(4))
    assert [len(images) for _, images, _ in batches] == [4, 4, 4]
    assert [len(tokens) for tokens, _, _ in batches] == [16, 16, 16]
    assert [int(first) for _, _, first in batches] == [0, 0, 2]
    assert torch.equal(batches[2][1][:2], batches[1][1][2:])
    assert [len(images) for _, images, _ in task.valid_batches(100)] == [10]


def test_what_was_scored_before_is_a_candidate_and_does_not_count_again():
    task = tiny().task()
    model = task.build_model().eval()
    tokens, images, first = list(task.valid_batches(4))[-1]
    with torch.no_grad():
        whole, part = (retrieval.score(model, tokens, images, start) for start in (0, int(first)))
    assert (whole["count"], part["count"]) == (4, 2)
    assert part["loss"] < whole["loss"]


def test_a_batch_larger_than_the_data_is_refused_before_a_folder_is_made(tmp_path):
    line = r"micro_batch: expected at most the 24 pairs there are to train on, got 25"
    with pytest.raises(ValueError, match=line):
        Trainer(tiny(micro_batch=25), tmp_path / "run").fit()
    assert not (tmp_path / "run").exists()


def test_the_largest_batch_has_all_the_wrong_captions_there_will_be():
    config = tiny(negatives={"hard": 0.5, "medium": 0.3, "mined": 1.0, "start": 7, "full": 2})
    tokens, images = config.task().largest_batch(6)
    assert len(images) == 6
    assert len(tokens) == 6 + 2 + 3 + 6


# ---- scores ----------------------------------------------------------------------------------------------------------


class Given(torch.nn.Module):
    """Vectors as they are given, in the place of a model's."""

    def __init__(self, images, texts):
        super().__init__()
        self.scale = torch.tensor(10.0)
        self.vision, self.text = (lambda _: images), (lambda _: texts)


def score(images, texts, tokens=None):
    tokens = torch.arange(len(texts))[:, None] if tokens is None else tokens
    return retrieval.score(Given(images, texts), tokens, torch.zeros(len(images), 3, 8, 8))


def test_vectors_that_agree_score_full_marks():
    eye = torch.eye(4)
    found = score(eye, torch.cat([eye, -eye, -eye, -eye]))
    assert all(found[name] == 4 for name in FIGURES)
    assert found["count"] == 4


def test_recall_counts_the_candidates_that_fit_better():
    images = torch.eye(6)
    own = images.roll(1, 0) * 0.9 + images * 0.5  # the own caption fits second best
    found = score(images, torch.cat([own, own, own, own]))
    assert (found["recall_1"], found["recall_5"], found["recall_10"]) == (0, 6, 6)
    assert found["image_recall_1"] == 0


def test_a_caption_with_the_same_words_is_as_right_as_ones_own():
    images = torch.tensor([[1.0, 0.1], [0.1, 1.0]])
    texts = torch.tensor([[0.0, 1.0], [0.3, 0.9]])
    others = torch.cat([texts] * 4)
    assert score(images, others, torch.arange(8)[:, None])["recall_1"] == 0
    assert score(images, others, torch.zeros(8, 1, dtype=torch.int64))["recall_1"] == 2


def test_accuracies_are_against_the_wrong_caption_of_their_kind():
    eye = torch.eye(3)
    found = score(eye, torch.cat([eye * 0.5 + eye.roll(1, 0) * 0.1, -eye, eye.roll(1, 0), eye]))
    assert (found["easy_accuracy"], found["medium_accuracy"], found["hard_accuracy"]) == (3, 3, 0)


def test_the_loss_of_an_evaluation_is_that_of_the_model_without_wrong_captions():
    task = tiny().task()
    model = task.build_model().eval()
    tokens, images, first = next(iter(task.valid_batches(5)))
    with torch.no_grad():
        expected = clip.loss(model, (tokens[:5], images)).item()
        assert task.score(model, (tokens, images, first))["loss"] == pytest.approx(5 * expected, rel=1e-5)


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan")])
def test_a_model_that_says_the_same_of_everything_finds_nothing(value):
    """Or one whose numbers left the range would be the best for good."""
    found = score(torch.full((12, 3), value), torch.full((48, 3), value))
    assert all(found[name] == 0 for name in FIGURES)


def test_the_table_says_what_guessing_would_reach():
    task = tiny().task()
    found = {row["what"]: row for row in task.assess(task.build_model().eval(), Path())}
    assert found["caption of a picture, best of 5"]["chance"] == pytest.approx(0.2)
    assert found["against a hard wrong caption"]["chance"] == 0.5
    assert found["zero-shot: shape (8)"]["chance"] == pytest.approx(1 / 8)
    assert all(0 <= row["share"] <= 1 for row in found.values())


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_logs_its_temperature_and_keeps_its_tokenizer():
    run = tiny_run()
    temperatures = [row["temperature"] for row in rows(run, "train")]
    assert len(temperatures) == 4
    assert temperatures[0] == pytest.approx(0.07, rel=0.01)
    assert len(set(temperatures)) == 4
    assert (run / "characters.json").is_file()
    for row in rows(run, "eval"):
        assert all(0 <= row[name] <= 1 for name in ClipTask.metrics[1:])


def test_evaluating_a_run_gives_its_own_scores():
    last = rows(tiny_run(), "eval")[-1]
    found = evaluation.evaluate(tiny_run(), "last")
    assert found["loss"] == pytest.approx(last["loss"], rel=1e-5)
    assert found["recall_1"] == last["recall_1"]


def test_a_tiny_model_learns_its_scenes(tmp_path):
    """24 pictures by heart: far above the 1 in 6 of guessing."""
    config = tiny(
        steps=150, data={"augment": False, "tokenizer": "bpe"}, negatives={"hard": 0.0},
        optimizer={"lr": 3e-3, "weight_decay": 0.0}, evaluation={"every": 0}, logging={"every": 5},
    )  # fmt: skip
    Trainer(config, tmp_path / "run").fit()
    trained = [row["loss"] for row in rows(tmp_path / "run", "train")]
    assert trained[-1] < 0.5 * trained[0]


def test_chunks_train_as_the_whole_batch_does(tmp_path):
    for name, chunk in (("whole", None), ("chunks", 2)):
        Trainer(tiny(model={"chunk": chunk}), tmp_path / name).fit()
    chunks, whole = ([loss for _, loss in losses(tmp_path / name)] for name in ("chunks", "whole"))
    assert chunks == pytest.approx(whole, rel=1e-4)


def test_chunks_count_as_the_work_they_are():
    """Encoders forward twice and backward once, which is worth two forwards: four thirds."""
    found = []
    for chunk in (None, 2):
        task = tiny(model={"chunk": chunk}).task()
        found.append(task.flops(task.build_model()) or 0.0)
    assert 1.2 < found[1] / found[0] < 1.4


def test_a_dry_run_counts_memory_and_work():
    found = dry_run.estimate(tiny())
    assert "pairs" in dry_run.as_text(tiny(), found)


def test_the_report_shows_pictures_figures_and_the_temperature(tmp_path):
    pytest.importorskip("matplotlib")
    Trainer(tiny(), tmp_path / "run").fit()
    page = write_report(tmp_path / "run").read_text()
    assert "The temperature that the model has learnt" in page
    assert "against a hard wrong caption" in page
    assert "training waited for data" in page
    assert page.count('src="data:image/png') >= 5


# ---- mining ----------------------------------------------------------------------------------------------------------


def mined(**changes):
    return tiny(negatives={"hard": 0.0, "mined": 1.0, "pool": 12}, **changes)


def test_mining_finds_captions_that_fit_better_than_the_own():
    images = torch.eye(4)
    texts = torch.eye(4)[[1, 0, 2, 3]]
    assert mining.mistakes(images, texts, [10, 11, 12, 13], Scenes(20, 16)) == {10: 11, 11: 10}


def test_another_caption_of_the_same_picture_is_no_mistake():
    class TwoCaptions(Scenes):
        def is_own(self, index, caption):
            return {index, 4 - index} >= {i for i in range(5) if self.caption(i) == caption}

    images = torch.eye(3)
    texts = torch.tensor([[0.0, 0.1, 0.0], [0.0, 0.5, 0.0], [1.0, 0.9, 0.0]])  # of pairs 0, 1 and 4
    found = mining.mistakes(images, texts, [0, 1, 4], TwoCaptions(5, 16))
    assert found == {0: 1, 1: 4, 4: 1}


def test_mined_captions_follow_the_schedule():
    config = mined().replace(negatives={"start": 5, "full": 8})
    task = config.task()
    batches = task.train_batches(task.config, 0, {"mined": [[i, (i + 1) % 24] for i in range(24)]})
    assert len(batches.next()[0]) == 6
    late = task.train_batches(task.config, 24 // 6 * 9, {"mined": [[i, (i + 1) % 24] for i in range(24)]})
    assert len(late.next()[0]) == 12


def test_mined_captions_join_the_batches_of_their_pictures(tmp_path):
    task = mined().task()
    task.train_batches(task.config, 0, None)
    batches = mining.MinedBatches(super(ClipTask, task).train_batches(task.config, 0, None), task)
    indices, _ = task.order(task.config).micro_batch(0)
    task.mined = {int(indices[1]): int(indices[0]), int(indices[4]): 7}
    tokens, images = batches.next()
    assert len(images) == 6
    assert len(tokens) == 8
    texts = [task.train_data.source.caption(i) for i in (int(indices[0]), 7)]
    expected = task.captions.batch(texts, task.train_data.context)
    assert torch.equal(tokens[6:, : expected.shape[1]], expected)


def test_a_run_that_mines_resumes_to_the_same_bits(tmp_path):
    config = mined(steps=6, evaluation={"every": 2}, checkpoints={"every": 1, "keep": 9})
    Trainer(config, tmp_path / "whole").fit()
    events = [row for row in rows(tmp_path / "whole", "event") if row["event"] == "mined"]
    assert any(row["captions"] for row in events)

    class Stop(Exception):
        pass

    trainer = Trainer(config, tmp_path / "broken")
    original = ClipTask.loss
    with pytest.MonkeyPatch.context() as patch:
        calls = iter(range(100))

        def breaks(task, model, batch):
            if batch[1].shape[0] == 6 and next(calls) == 4:
                raise Stop
            return original(task, model, batch)

        patch.setattr(ClipTask, "loss", breaks)
        patch.setattr(ClipTask, "flops", lambda task, model: None)
        with pytest.raises(Stop):
            trainer.fit()
    Trainer.resume(tmp_path / "broken").fit()
    (tensors, _), (others, _) = final(tmp_path / "broken"), final(tmp_path / "whole")
    assert_same_tensors(tensors, others)
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")
