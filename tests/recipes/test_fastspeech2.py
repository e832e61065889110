import json
import logging
import re

import numpy as np
import pytest
import torch

from fullstride import recipes, speaking
from fullstride.cli.runs import write_report
from fullstride.models import fastspeech2
from fullstride.recipes.fastspeech2 import Data, Listening, Model, quality
from fullstride.recipes.fastspeech2.task import FastSpeech2Task
from fullstride.run_folder import metrics
from fullstride.sound import wav
from fullstride.speech import recogniser
from fullstride.train import dry_run, evaluation
from fullstride.train.trainer import Trainer

from .speech_corpus import HELD_OUT, TRAIN, tiny


def nothing():
    pass


@pytest.fixture
def hearing(monkeypatch):
    """A recogniser that hears every word but the first."""
    monkeypatch.setattr(recogniser, "missing", lambda: None)

    def transcribe_all(sounds, processes, between):
        texts = [HELD_OUT[i % len(HELD_OUT)] for i in range(len(sounds))]
        return [" ".join(text.split()[1:]) for text in texts]

    monkeypatch.setattr(recogniser, "transcribe_all", transcribe_all)


@pytest.fixture
def deaf(monkeypatch):
    monkeypatch.setattr(recogniser, "missing", lambda: "expected the recogniser pocketsphinx, got none")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Of four steps."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recogniser, "missing", lambda: "expected the recogniser pocketsphinx, got none")
        Trainer(tiny(listening={"sentences": 2}), folder).fit()
    return folder


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (Model, {"width": 30, "heads": 4}, r"model\.width: expected a multiple of 2 x heads \(8\), got 30"),
        (Model, {"heads": 0}, r"model\.heads: expected 1 or more, got 0"),
        (Model, {"encoder_layers": 0}, r"model\.encoder_layers: expected 1 or more, got 0"),
        (Model, {"kernel": 4}, r"model\.kernel: expected an odd number from 1 on, got 4"),
        (Model, {"predictor_kernel": -1}, r"model\.predictor_kernel: expected an odd number from 1 on, got -1"),
        (Model, {"variance_bins": 1}, r"model\.variance_bins: expected 2 or more, got 1"),
        (Model, {"dropout": 1.0}, r"model\.dropout: expected from 0 to below 1, got 1.0"),
        (Model, {"predictor_dropout": float("nan")}, r"model\.predictor_dropout: expected from 0 to below 1, got nan"),
        (Data, {"workers": -1}, r"data\.workers: expected 0 or more, or auto, got -1"),
        (Data, {"prefetch": 0}, r"data\.prefetch: expected 1 or more, got 0"),
        (Listening, {"sentences": -1}, r"listening\.sentences: expected 0 or more, got -1"),
        (Listening, {"sample": -1}, r"listening\.sample: expected 0 or more, got -1"),
        (Listening, {"iterations": 0}, r"listening\.iterations: expected 1 or more, got 0"),
    ],
)
def test_a_field_that_cannot_be_is_one_line(kind, changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        kind(**changes)
    assert "\n" not in str(caught.value)


def test_a_corpus_that_is_not_there_says_what_makes_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no corpus of speech in .*: `fullstride data speech --hours 2` makes"):
        tiny(data={"path": str(tmp_path)}).task()


def test_the_long_recipe_is_as_the_paper_trains_and_the_quick_one_cosine():
    slow, quick = recipes.fastspeech2(), recipes.fastspeech2_quick()
    assert (slow.micro_batch, slow.accumulate, slow.clip) == (16, 2, 1.0)
    assert (slow.optimizer.lr, slow.optimizer.betas, slow.optimizer.weight_decay) == (1e-4, (0.9, 0.999), 0.0)
    assert (slow.schedule.name, slow.schedule.warmup, slow.schedule.every) == ("step", 4000, 50_000)
    assert quick.schedule.name == "cosine"


# ---- the task --------------------------------------------------------------------------------------------------------


def test_an_epoch_has_every_sentence_once_among_others_about_as_long():
    config = tiny(micro_batch=3)
    task = config.task()
    order = task.order(config)
    assert task.micro_batches_of_epoch(config) == 6  # five of 3 sentences, one of 1
    batches = [order.micro_batch(i)[0] for i in range(6)]
    assert sorted(np.concatenate(batches)) == list(range(len(TRAIN)))
    assert sorted(task.num_samples(task.train_data.batch(*order.micro_batch(i)), config) for i in range(6))[0] == 1
    frames = task.train_data.lengths
    assert sum(frames[batch].max() * len(batch) for batch in batches) < 1.15 * frames.sum()


def test_scores_are_means_over_the_held_out_sentences():
    task = tiny().task()
    torch.manual_seed(0)
    model = task.build_model().eval()
    together = evaluation.run(model, task, 4)
    alone = [evaluation.run(model, SomeOf(task, i), 1) for i in range(len(HELD_OUT))]
    assert tuple(together) == task.metrics
    assert together["pitch_correlation"] == pytest.approx(np.mean([one["pitch_correlation"] for one in alone]))
    batch = task.valid_data.batch(np.arange(4), np.zeros(4, np.int64))
    assert together["loss"] == pytest.approx(fastspeech2.loss(model, batch).item(), rel=1e-5)


class SomeOf(FastSpeech2Task):
    """With one held-out sentence."""

    def __init__(self, task, index):
        self.__dict__.update(task.__dict__)
        self.index = index

    def valid_batches(self, batch):
        return [self.valid_data.batch(np.array([self.index]), np.array([0]))]


def test_a_perfect_prediction_scores_as_one(monkeypatch):
    task = tiny().task()
    batch = task.valid_data.batch(np.arange(4), np.zeros(4, np.int64))
    _, _, durations, pitch, energy, mel = batch
    perfect = fastspeech2.Prediction(mel, None, torch.log1p(durations.float()), pitch, energy, durations)
    monkeypatch.setattr(fastspeech2, "predict", lambda *_: perfect)
    found = task.score(task.build_model(), batch)
    assert found == pytest.approx({"loss": 0, "mel_l1": 0, "duration_ms": 0, "pitch_correlation": 4, "count": 4})


def test_a_duration_that_is_a_frame_too_long_is_256_samples_off(monkeypatch):
    task = tiny().task()
    batch = task.valid_data.batch(np.arange(2), np.zeros(2, np.int64))
    _, _, durations, pitch, energy, mel = batch
    off = fastspeech2.Prediction(mel, None, torch.log1p(durations + 1.0), pitch, energy, durations)
    monkeypatch.setattr(fastspeech2, "predict", lambda *_: off)
    assert task.score(task.build_model(), batch)["duration_ms"] / 2 == pytest.approx(1000 * 256 / 22050)


def test_a_run_says_how_much_of_its_batches_is_padding(tmp_path, caplog):
    config = tiny(steps=1, evaluation={"every": 9}, checkpoints={"every": 9})
    with caplog.at_level(logging.INFO, "fullstride"):
        Trainer(config, tmp_path / "run").fit()
    text = (tmp_path / "run" / "log.txt").read_text() + caplog.text
    shown = re.search(r"0\.01 hours of speech, 16 sentences by en-us; ([\d.]+) % of the frames in a batch are", text)
    assert float(shown[1]) == pytest.approx(100 * config.task().order(config).padding(), abs=0.06)


def test_other_tasks_say_no_more_than_before():
    assert recipes.mlp().replace(data={"num_samples": 8}).task().describe() is None


def test_two_steps_are_those_of_stock_pytorch(tmp_path):
    config = tiny(steps=2, model={"dropout": 0.0, "predictor_dropout": 0.0}, optimizer={"lr": 1e-3})
    Trainer(config, tmp_path / "run").fit()
    torch.manual_seed(config.seed)
    task = config.task()
    model, order = task.build_model().train(), task.order(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    losses = []
    for step in range(2):
        optimizer.zero_grad()
        parts = []
        for i in range(2):
            loss = fastspeech2.loss(model, task.train_data.batch(*order.micro_batch(2 * step + i))) / 2
            loss.backward()
            parts.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(sum(parts))
    rows = [row for row in metrics.read(tmp_path / "run") if row["kind"] == "train"]
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-5)
    trained = evaluation.find(tmp_path / "run", "2").tensors["model"]
    for name, tensor in model.state_dict().items():
        # Adam's first steps are about lr, whatever the gradient: where that is all but 0, rounding decides its sign.
        if name.endswith("attention.key.bias"):  # where it is 0: softmax does not see what all keys have in common
            continue
        off = (trained[name] - tensor).abs()
        assert off.mean() < 2e-5, name


def test_frames_are_counted_by_the_sentences_that_were_trained_on(run):
    task = tiny().task()
    rows = [row for row in metrics.read(run) if row["kind"] == "train"]
    assert task.units_per_sample == round(task.train_data.lengths.sum() / len(TRAIN))
    assert rows[-1]["per_second"] == pytest.approx(8 * task.units_per_sample * 1000 / rows[-1]["step_ms"])


def test_the_estimate_is_of_the_longest_sentences():
    task = tiny().task()
    longest = np.sort(task.train_data.lengths)[::-1][:4]
    assert task.largest_batch(4)[2].sum(1).tolist() == longest.tolist()
    shown = dry_run.as_text(tiny(), dry_run.estimate(tiny()))
    assert re.search(r"^training +4 steps of 2 x 4 x \d+ frames, 2 epochs$", shown, re.MULTILINE)
    assert "% of the frames in a batch are padding" in shown


# ---- listening -------------------------------------------------------------------------------------------------------


def test_each_evaluation_leaves_a_sound_and_an_event(run):
    events = [row for row in metrics.read(run) if row.get("event") == "speech"]
    assert [(row["step"], row["file"]) for row in events] == [
        (2, "samples/step-000002.wav"), (4, "samples/step-000004.wav")
    ]  # fmt: skip
    assert {row["text"] for row in events} == {HELD_OUT[0]}
    sound = wav.read(run / "samples" / "step-000004.wav")
    assert sound.rate == 22050
    assert len(sound.samples) % 256 == 0


def test_without_a_recogniser_there_is_a_sound_and_no_word_error_rate(tmp_path, deaf):
    task = tiny(listening={"sentences": 3}).task()
    [event] = task.show(task.build_model(), tmp_path, 7, nothing)
    assert (event["word_error_rate"], event["heard"]) == (None, None)
    assert (tmp_path / event["file"]).is_file()
    assert not (tmp_path / "samples" / "reference.json").exists()


def test_what_is_heard_is_compared_with_what_was_said(tmp_path, hearing):
    task = tiny(listening={"sentences": 2}).task()
    [event] = task.show(task.build_model(), tmp_path, 7, nothing)
    assert event["word_error_rate"] == 2 / 8  # two sentences of four words
    assert event["heard"] == "dog went home."
    assert json.loads((tmp_path / "samples" / "reference.json").read_text()) == {"voice": 0.25, "copy": 0.25}


def test_a_sample_beyond_the_sentences_that_are_counted_is_heard_and_not_counted(tmp_path, hearing):
    task = tiny(listening={"sentences": 1, "sample": 9}).task()
    [event] = task.show(task.build_model(), tmp_path, 7, nothing)
    assert event["text"] == HELD_OUT[-1]
    assert event["word_error_rate"] == 1 / 4


def test_a_run_that_is_told_to_stop_does_not_go_on_listening(tmp_path, hearing):
    def stop():
        raise KeyboardInterrupt

    task = tiny(listening={"sentences": 2}).task()
    with pytest.raises(KeyboardInterrupt):
        task.show(task.build_model(), tmp_path, 7, stop)
    assert not list((tmp_path / "samples").iterdir())


@pytest.fixture
def dying(monkeypatch):
    """A recogniser whose processes are killed."""
    monkeypatch.setattr(recogniser, "missing", lambda: None)

    def transcribe_all(sounds, processes, between):
        raise recogniser.RecogniserDied("sound 0: expected a process to hear it, but one ended")

    monkeypatch.setattr(recogniser, "transcribe_all", transcribe_all)


def test_a_recogniser_that_dies_does_not_end_a_training(tmp_path, dying):
    Trainer(tiny(steps=2, listening={"sentences": 2}), tmp_path / "run").fit()
    [event] = [row for row in metrics.read(tmp_path / "run") if row.get("event") == "speech"]
    assert (event["step"], event["word_error_rate"]) == (2, None)
    assert "step 2: not all was listened to: sound 0: expected a process" in (tmp_path / "run" / "log.txt").read_text()


def test_a_recogniser_that_dies_by_what_stops_the_run_stops_it(tmp_path, dying):
    calls: list[None] = []

    def stop():
        calls.append(None)
        if len(calls) > 2:  # after two sentences were said
            raise KeyboardInterrupt

    task = tiny(listening={"sentences": 2}).task()
    with pytest.raises(KeyboardInterrupt):
        task.show(task.build_model(), tmp_path, 7, stop)


def test_listening_leaves_the_mode_and_the_threads_as_they_were(tmp_path, deaf):
    task = tiny().task()
    model, count = task.build_model().train(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        task.show(model, tmp_path, 7, nothing)
        assert model.training
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(count)


# ---- quality and report ----------------------------------------------------------------------------------------------


def test_the_assessment_has_the_model_between_what_is_worse_and_what_is_best(run, hearing):
    _, rows = evaluation.assess(run)
    assert [row["who"] for row in rows] == [
        "an untrained model", "means of the corpus", "this model", "copy by the vocoder", "the voice itself"
    ]  # fmt: skip
    assert set(rows[0]) == {"who", "mel_l1", "mcd_db", "duration_ms", "pitch_correlation", "word_error_rate"}
    assert rows[3]["mel_l1"] < rows[2]["mel_l1"]
    assert rows[4]["mcd_db"] == 0
    assert [row["word_error_rate"] for row in rows] == [None, None, 0.25, 0.25, 0.25]


def test_without_a_recogniser_the_assessment_has_all_but_word_errors(run, deaf):
    _, rows = evaluation.assess(run)
    assert {row["word_error_rate"] for row in rows} == {None}
    assert rows[2]["mcd_db"] > 0


def test_energy_and_pitch_of_a_picture_are_those_of_the_voice_not_deviations():
    task = tiny().task()
    pair = quality._pair(task, task.build_model(), 1)
    shard = task.corpus.valid[0]
    place = slice(*shard.starts["phonemes"][1:3])
    has_frames = shard.durations[place] > 0
    assert pair.true_energy[has_frames] == pytest.approx(shard.energy[place][has_frames], rel=1e-4)
    assert (pair.predicted_energy > 0).all()
    assert pair.true_pitch.tolist() == shard.pitch[place].tolist()
    assert ((pair.predicted_pitch > 0) == (pair.true_pitch > 0)).all()


def test_the_report_shows_mels_quality_and_sounds(run):
    page = write_report(run).read_text()
    for title in ("Spectrograms", "Quality of speech"):
        assert title in page
    assert "copy by the vocoder" in page
    assert page.count("data:audio/wav;base64,") == 2
    assert HELD_OUT[0] in page


def test_a_run_has_what_its_voice_needs(run):
    assert [speaker.name for speaker in speaking.load_speakers(run)] == ["en-us"]
    assert json.loads((run / "front_end.json").read_text())["engine"] == "espeak"
