"""What a speaking model's report shows, and what it plays."""

import base64
import re
import struct
import subprocess
import sys

import numpy as np
import pytest

from fullstride import report
from fullstride.report import drawing, speech
from fullstride.report.page import document, page, plain_header
from fullstride.report.section import Recording, Section
from fullstride.report.speech import MelPair, Quality, quality, recordings_section, spectrograms, word_errors

from .page_reader import Page
from .runs import event_row, make_folder, make_run, rows

SENTENCE = "Bring me some water, please."


def wav(num_samples=100):
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + 2 * num_samples, b"WAVE", b"fmt ", 16, 1, 1, 22050, 44100,
                       2, 16, b"data", 2 * num_samples)  # fmt: skip
    return head + bytes(2 * num_samples)


def said(step, text=SENTENCE, rate=None, heard=None, **changes):
    named = {"text": text, "file": f"samples/step-{step:06d}.wav", "word_error_rate": rate, "heard": heard}
    return event_row(step, "speech", **named | changes)


def folder_with(path, steps, content=None):
    (path / "samples").mkdir()
    for step in steps:
        (path / f"samples/step-{step:06d}.wav").write_bytes(wav() if content is None else content)
    return path


def pair(num_phonemes=5, num_frames=40, longer=6, **changes):
    generator = np.random.default_rng(0)
    per_phoneme = {
        f"{side}_{name}": generator.uniform(1.0, 9.0, num_phonemes)
        for side in ("predicted", "true") for name in ("pitch", "energy", "durations")
    }  # fmt: skip
    names = [f"p{i}" for i in range(num_phonemes)]
    lengths = {"predicted": num_frames + longer, "true": num_frames}
    mels = {side: generator.normal(size=(length, 80)) for side, length in lengths.items()}
    return MelPair(**{"text": SENTENCE, "phonemes": names} | mels | per_phoneme | changes)


def axes_of(figure):
    """Drawn, but not turned into markup."""
    from matplotlib.figure import Figure

    canvas = Figure(layout="constrained")
    figure.draw(canvas)
    return canvas.axes


def test_a_sentence_has_its_mels_its_curves_and_its_durations():
    captions = [figure.caption for figure in spectrograms([pair()]).figures]
    assert [caption.split(" of ")[0] for caption in captions] == [
        "Mel spectrogram", "Mel spectrogram", "Pitch and energy", "Durations",
    ]  # fmt: skip
    assert all(SENTENCE in caption for caption in captions)


def test_both_mels_have_one_colour_scale_and_one_time_axis():
    shown = pair(num_frames=40, longer=6, frame_seconds=0.01)
    true, predicted = (axes_of(figure)[0] for figure in spectrograms([shown]).figures[:2])
    everything = np.concatenate([shown.true.ravel(), shown.predicted.ravel()])
    limits = pytest.approx((everything.min(), everything.max()))
    assert true.images[0].get_clim() == limits
    assert predicted.images[0].get_clim() == limits
    assert true.get_xlim() == predicted.get_xlim() == pytest.approx((0.0, 0.46))
    assert true.images[0].get_extent()[1] == pytest.approx(0.40)


def test_mels_are_pictures_inside_a_small_svg():
    for figure in spectrograms([pair(num_frames=500)]).figures[:2]:
        markup = drawing.draw(figure, 1)
        assert markup.startswith("<svg")
        assert len(markup) < 200_000
        assert all(value.startswith(("#", "data:image/png")) for value in Page(markup).values("xlink:href"))


def test_pitch_has_gaps_where_there_is_no_voice():
    pitch = np.array([0.0, 120.0, 0.0, 130.0, np.nan])
    axes = axes_of(spectrograms([pair(true_pitch=pitch)]).figures[2])
    true = axes[0].lines[0]
    np.testing.assert_array_equal(true.get_ydata(), [np.nan, 120.0, np.nan, 130.0, np.nan])
    assert true.get_marker() == "o"  # a phoneme between two gaps is seen all the same


def test_a_sentence_without_voice_is_drawn():
    silent = pair(true_pitch=np.zeros(5), predicted_pitch=np.zeros(5))
    assert "pitch (Hz)" in Page(drawing.draw(spectrograms([silent]).figures[2], 1)).text


def test_durations_are_bars_in_ms_named_by_their_phonemes():
    shown = pair(true_durations=np.array([1, 2, 3, 4, 5]), frame_seconds=0.01)
    (ax,) = axes_of(spectrograms([shown]).figures[3])
    assert [bar.get_height() for bar in ax.containers[0]] == pytest.approx([10, 20, 30, 40, 50])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["p0", "p1", "p2", "p3", "p4"]


def test_durations_of_a_long_sentence_stand_in_rows_and_every_phoneme_is_named_once():
    figure = spectrograms([pair(num_phonemes=45)]).figures[3]
    names = [[label.get_text() for label in ax.get_xticklabels()] for ax in axes_of(figure)]
    assert [len(row) for row in names] == [15, 15, 15]
    assert [name for row in names for name in row] == [f"p{i}" for i in range(45)]


def test_of_a_very_long_sentence_the_first_phonemes_are_shown_and_it_is_said():
    figure = spectrograms([pair(num_phonemes=250)]).figures[3]
    assert "The first 100 of 250 phonemes." in figure.caption
    assert sum(len(ax.get_xticklabels()) for ax in axes_of(figure)) == 100


def test_at_most_three_sentences_are_shown():
    assert len(spectrograms([pair()] * 9).figures) == 3 * 4


def test_without_sentences_it_says_so():
    assert spectrograms([]).text == "There were no sentences to show."


def test_one_phoneme_of_one_frame_is_drawn():
    tiny = pair(num_phonemes=1, num_frames=1, longer=0)
    assert all(drawing.draw(figure, 1) for figure in spectrograms([tiny]).figures)


def test_mels_that_are_not_finite_are_drawn():
    broken = pair(predicted=np.full((4, 80), np.nan), true=np.full((4, 80), np.nan))
    assert all(drawing.draw(figure, 1) for figure in spectrograms([broken]).figures)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"true_pitch": np.zeros(4)}, r"true_pitch of .*: expected one value for each of 5 phonemes, got .*\(4,\)"),
        ({"predicted_durations": np.zeros((5, 1))}, r"predicted_durations of .*got the shape \(5, 1\)"),
        ({"predicted": np.zeros((40, 64))}, r"mels of .*: expected .*\(40, 64\) and \(40, 80\)"),
        ({"true": np.zeros(40)}, r"mels of .*: expected \(frames, bins\)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        pair(**changes)
    assert "\n" not in str(error.value)


def test_quality_has_a_row_for_each_and_a_dash_where_nothing_can_be_said():
    (table,) = quality([Quality("untrained", 4.1, 21.3, 71.24, 0.02, 1.0), Quality("the voice itself")]).tables
    assert list(table.rows) == [
        ("untrained", "4.100", "21.30", "71.2", "0.020", "1.00"), ("the voice itself", "-", "-", "-", "-", "-"),
    ]  # fmt: skip
    assert len(table.columns) == 6


def test_a_correlation_that_is_not_a_number_is_a_dash():
    assert quality([Quality("flat", pitch_correlation=float("nan"))]).tables[0].rows[0][4] == "-"


def test_word_error_rates_are_a_curve_with_lines_for_the_voice_and_copy_synthesis():
    compared = [
        Quality("this model", word_error_rate=0.3), Quality("copy synthesis", word_error_rate=0.15, is_bound=True),
        Quality("the voice itself", word_error_rate=0.13, is_bound=True), Quality("no recogniser", is_bound=True),
    ]  # fmt: skip
    (figure,) = quality(compared, [(1000, 0.4), (500, 0.9)]).figures
    (ax,) = axes_of(figure)
    assert [line.get_label() for line in ax.lines] == ["this model", "copy synthesis, 0.15", "the voice itself, 0.13"]
    assert list(ax.lines[0].get_xdata()) == [500, 1000]
    assert list(ax.lines[0].get_ydata()) == [0.9, 0.4]


def test_without_evaluations_quality_has_no_figure():
    assert quality([Quality("this model", word_error_rate=0.3)]).figures == []


def test_word_errors_are_those_of_the_events_without_what_nobody_heard():
    run = make_run([said(1000, rate=0.4), said(500, rate=0.9), said(1500), said(500, rate=0.8, attempt=2)])
    assert word_errors(run) == [(500, 0.8), (1000, 0.4)]


def test_a_run_that_said_nothing_has_no_recordings(tmp_path):
    assert recordings_section(make_run(rows()), tmp_path) is None


def test_each_evaluation_can_be_heard_with_what_a_recogniser_made_of_it(tmp_path):
    run = make_run([said(1000, rate=0.4, heard="bring me water"), said(500, rate=1.0, heard=""), said(1500)])
    found = recordings_section(run, folder_with(tmp_path, [500, 1000, 1500]))
    assert [(recording.title, recording.note) for recording in found.recordings] == [
        ("After step 500", "The recogniser heard nothing. Word error rate 1.00."),
        ("After step 1,000", 'The recogniser heard "bring me water". Word error rate 0.40.'),
        ("After step 1,500", ""),
    ]
    assert all(recording.content == wav() for recording in found.recordings)
    assert f'The sentence: "{SENTENCE}"' in found.text


def test_different_sentences_stand_beside_their_recordings(tmp_path):
    run = make_run([said(1, "One"), said(2, "Two?")])
    found = recordings_section(run, folder_with(tmp_path, [1, 2]))
    assert [recording.note for recording in found.recordings] == ['The sentence: "One".', 'The sentence: "Two?"']
    assert "The sentence" not in found.text


def test_of_many_recordings_the_first_the_last_and_some_between_are_there(tmp_path):
    steps = range(100, 3100, 100)
    found = recordings_section(make_run([said(step) for step in steps]), folder_with(tmp_path, steps))
    titles = [recording.title for recording in found.recordings]
    assert len(set(titles)) == 8
    assert (titles[0], titles[-1]) == ("After step 100", "After step 3,000")
    assert "8 of 30 are here" in found.text


def test_large_recordings_are_fewer_so_that_the_page_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(speech, "_MOST_BYTES", 3 * len(base64.b64encode(wav())))
    steps = [1, 2, 3, 4, 5]
    found = recordings_section(make_run([said(step) for step in steps]), folder_with(tmp_path, steps))
    assert [recording.title[-1] for recording in found.recordings] == ["1", "3", "5"]


def test_if_one_recording_fits_it_is_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(speech, "_MOST_BYTES", len(base64.b64encode(wav())))
    found = recordings_section(make_run([said(1), said(2)]), folder_with(tmp_path, [1, 2]))
    assert [recording.title for recording in found.recordings] == ["After step 2"]


def test_if_none_fits_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(speech, "_MOST_BYTES", 10)
    found = recordings_section(make_run([said(1)]), folder_with(tmp_path, [1]))
    assert found.recordings == []
    assert "0 of 1 are here" in found.text


def test_missing_and_broken_files_are_told_and_the_others_play(tmp_path):
    folder = folder_with(tmp_path, [1, 2])
    (folder / "samples/step-000002.wav").write_bytes(b"not a sound")
    (folder / "samples/step-000004.wav").mkdir()
    found = recordings_section(make_run([said(1), said(2), said(3), said(4)]), folder)
    assert [recording.title for recording in found.recordings] == ["After step 1"]
    assert "step 2 (samples/step-000002.wav is no WAV file)" in found.text
    assert "step 3 (samples/step-000003.wav is missing)" in found.text
    assert "step 4 (samples/step-000004.wav cannot be read" in found.text


@pytest.mark.parametrize(
    "name", ["../secret.wav", "/etc/secret.wav", "samples/../../secret.wav", "samples/a.wav", 7, None]
)
def test_a_row_cannot_bring_another_file_into_the_page(tmp_path, name):
    run_folder = tmp_path / "run"
    (run_folder / "samples").mkdir(parents=True)
    for place in (tmp_path / "secret.wav", run_folder / "samples/a.wav"):
        place.write_bytes(wav())
    found = recordings_section(make_run([said(1, file=name)]), run_folder)
    assert found.recordings == []
    assert "expected a file samples/step-NNNNNN.wav" in found.text


def test_a_step_that_was_done_again_is_heard_once(tmp_path):
    run = make_run([said(4, heard="before"), said(4, heard="after", attempt=2)])
    (recording,) = recordings_section(run, folder_with(tmp_path, [4])).recordings
    assert recording.note == 'The recogniser heard "after".'


def test_control_characters_do_not_reach_the_page(tmp_path):
    found = recordings_section(make_run([said(4, "a\x1b[1m\x00\nb")]), folder_with(tmp_path, [4]))
    assert 'The sentence: "a [1m b".' in found.text


def test_the_page_plays_a_recording_without_a_script_and_names_it():
    sections = [Section("Own", recordings=[Recording(wav(), "<b>", "a & b")], recordings_caption="Sounds.")]
    read = Page(document("x", plain_header("x", "x", "x"), sections))
    (audio,) = read.all("audio")
    assert "controls" in audio
    assert (audio["preload"], audio["aria-label"]) == ("none", "<b>")
    kind, content = audio["src"].split(",")
    assert kind == "data:audio/wav;base64"
    assert base64.b64decode(content) == wav()
    assert "<b>" in read.text
    assert "a & b" in read.text
    assert "Sounds." in read.text
    assert not read.all("script")


@pytest.mark.parametrize(("recordings", "allowed"), [([Recording(wav(), "x")], True), ([], False)])
def test_the_policy_lets_sounds_play_where_there_are_some(recordings, allowed):
    read = Page(document("x", plain_header("x", "x", "x"), [Section("Own", recordings=recordings)]))
    (policy,) = [meta["content"] for meta in read.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert ("media-src data:" in policy) == allowed


def test_the_report_of_a_run_has_its_recordings_before_the_sections_of_the_task(tmp_path, fast_figures):
    folder = folder_with(make_folder(tmp_path, [*rows(), said(40, rate=0.25)]), [40])
    read = Page(report.write(folder, [Section("Own")]).read_text())
    ids = [name for name in read.values("id") if name in ("learning", "recordings", "own")]
    assert ids == ["learning", "recordings", "own"]
    assert "Word error rate 0.25." in read.text
    assert len(read.all("audio")) == 1


def test_a_page_without_a_folder_has_no_recordings(fast_figures):
    assert not Page(page(make_run([*rows(), said(40)]))).all("audio")


def test_figures_take_their_colours_from_the_page():
    sections = [spectrograms([pair()]), quality([Quality("a", word_error_rate=0.1, is_bound=True)], [(1, 0.5)])]
    figures = [drawing.draw(figure, i) for section in sections for i, figure in enumerate(section.figures)]
    styles = " ".join(re.findall(r' style="([^"]*)"', " ".join(figures)))
    assert "var(--blue)" in styles
    assert not re.search(r"#[0-9a-f]{6}\b", styles)


def test_import_loads_neither_torch_nor_matplotlib():
    code = "import sys, fullstride.report.speech; print({'torch', 'matplotlib'} & sys.modules.keys())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
