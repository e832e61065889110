"""Copy synthesis as a table: which files are taken, what is left out, what is said of a sound."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import copy_synthesis

from fullstride.sound import wav


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four sounds of ten harmonics each, and a silent one."""
    for name, hertz in (("a", 110.0), ("b", 150.0), ("c", 200.0), ("d", 250.0)):
        angles = 2.0 * np.pi * hertz * np.arange(8000) / 16000
        wav.write(tmp_path / f"{name}.wav", 0.05 * sum(np.sin(k * angles) for k in range(1, 11)), 16000)
    wav.write(tmp_path / "silent.wav", np.zeros(8000), 16000)
    return tmp_path


def test_a_sound_comes_back_near_to_what_it_was(folder):
    row = copy_synthesis.measure(folder / "a.wav")
    assert (row.name, row.seconds) == ("a", 0.5)
    assert 0.0 < row.mel_l1 < 0.3
    assert 0.0 < row.distortion < 3.0


def test_files_are_taken_from_all_over_the_folder(folder):
    assert [path.stem for path in copy_synthesis.chosen(folder, 2)] == ["a", "c"]
    assert len(copy_synthesis.chosen(folder, 9)) == 5


def test_the_table_has_a_line_for_each_sound_and_names_what_is_left_out(folder, capsys):
    assert copy_synthesis.main([str(folder), "--iterations", "2", "--out", str(folder / "copies")]) == 0
    printed = capsys.readouterr()
    assert [line.split()[0] for line in printed.out.splitlines()[1:]] == ["a", "b", "c", "d", "mean", "median"]
    assert "silent.wav: silence" in printed.err
    assert wav.read(folder / "copies" / "d.wav").rate == 22050


def test_a_folder_without_sounds_is_refused_in_one_line(tmp_path, capsys):
    assert copy_synthesis.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
