"""A study: parts that are recorded as they are done, a stop and a way on, and no mixing of what is not the same."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fullstride.bench import study as studies
from fullstride.bench.study import StudyStopped
from fullstride.report.section import Figure, Section
from fullstride.run_folder.lock import FolderInUse

WISH = {"config": {"steps": 10, "model": {"hidden": (4, 4)}}, "seconds": 2.5}
HERE = {
    "cpu": "a CPU", "usable_cores": 2, "threads": 2, "isa": "avx2", "torch": "2.13", "python": "3.11", "commit": "abc",
    "load": 0.1,
}  # fmt: skip
NAMES = ["a", "b", "c"]


def opened(folder, wish=WISH, conditions=HERE, anew=False, command="ablate mlp", say=lambda text: None):
    return studies.opened(folder, command, wish, conditions, anew, say)


def content(folder):
    return json.loads((folder / studies.FILE).read_text())


def take(study, names=NAMES, until=None):
    for name in study.left(names):
        study.record(name, {"value": ord(name)}, said=f"value {ord(name)}")
        if name == until:
            return


def test_parts_are_recorded_in_their_order_with_wish_and_conditions(tmp_path):
    with opened(tmp_path / "new" / "study") as study:
        take(study)
        study.finish({"best": "c"})
    found = content(tmp_path / "new" / "study")
    assert list(found["parts"]) == NAMES
    assert found["parts"]["b"] == {"value": 98, "said": "value 98"}
    assert found["wish"] == json.loads(json.dumps(WISH))
    assert (found["command"], found["conditions"], found["outcome"]) == ("ablate mlp", HERE, {"best": "c"})


def test_only_parts_that_are_left_are_taken_by_the_next_one(tmp_path):
    with opened(tmp_path) as study:
        take(study, until="a")
    with opened(tmp_path) as study:
        assert list(study.parts) == ["a"]
        taken = []
        for name in study.left(NAMES):
            taken.append(name)
            study.record(name, {})
    assert taken == ["b", "c"]
    assert content(tmp_path)["parts"]["a"]["value"] == 97


def test_progress_counts_all_parts_and_says_what_was_found(tmp_path):
    said: list[str] = []
    with opened(tmp_path) as study:
        take(study, until="a")
    with opened(tmp_path, say=said.append) as study:
        take(study)
    assert said[0] == "1 of 3 parts were done before: going on"
    assert said[1].startswith("[2/3] b: value 98; about ")
    assert said[1].endswith(" left")
    assert said[2] == "[3/3] c: value 99"


def test_a_part_that_was_not_recorded_is_an_error_of_whoever_takes_it(tmp_path):
    with pytest.raises(AssertionError, match="a was not recorded"), opened(tmp_path) as study:
        for _ in study.left(NAMES):
            pass


def test_a_new_part_takes_the_outcome_of_fewer_away(tmp_path):
    with opened(tmp_path) as study:
        study.finish({"best": "a"})
        assert study.outcome == {"best": "a"}
        study.record("b", {})
        assert study.outcome is None
    assert content(tmp_path)["outcome"] is None


def test_conditions_of_the_beginning_stay(tmp_path):
    with opened(tmp_path) as study:
        study.record("a", {})
    with opened(tmp_path, conditions=HERE | {"load": 7.0}) as study:
        assert study.conditions["load"] == 0.1


def test_a_study_without_a_part_is_begun_with_other_wishes(tmp_path):
    folder = tmp_path / "study"
    with pytest.raises(ValueError, match="no such data"), opened(folder):
        raise ValueError("no such data")
    with opened(folder, wish={"seconds": 9.0}, conditions=HERE | {"commit": "def"}) as study:
        study.record("a", {})
    assert (content(folder)["wish"], content(folder)["conditions"]["commit"]) == ({"seconds": 9.0}, "def")
    assert [path.name for path in tmp_path.iterdir()] == ["study"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"wish": {**WISH, "seconds": 3.0}}, "seconds 2.5, here it is 3.0"),
        ({"wish": {"config": {"steps": 11, "model": {"hidden": [4, 4]}}, "seconds": 2.5}}, "config.steps 10, here it"),
        ({"wish": {**WISH, "quick": True}}, "quick None, here it is True"),
        ({"conditions": HERE | {"commit": "def"}}, "commit abc, here it is def"),
        ({"conditions": HERE | {"cpu": "another"}}, "cpu a CPU, here it is another"),
        ({"conditions": HERE | {"threads": 1}}, "threads 2, here it is 1"),
        ({"command": "tune mlp"}, "command ablate mlp, here it is tune mlp"),
    ],
    ids=["wish", "nested", "more", "commit", "machine", "threads", "command"],
)
def test_what_is_not_the_same_is_refused_and_named(tmp_path, changes, named):
    with opened(tmp_path) as study:
        take(study)
    before = content(tmp_path)
    with pytest.raises(ValueError, match=r"holds a study with .* --anew begins again, --to names another") as caught:
        opened(tmp_path, **changes).__enter__()
    assert named in str(caught.value)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_CBWR", "FULLSTRIDE_ISA"])
def test_another_environment_is_refused_by_the_name_of_the_variable(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with opened(tmp_path) as study:
        take(study, until="a")
    assert content(tmp_path)["environment"][name] == "1"
    monkeypatch.setenv(name, "2")
    with pytest.raises(ValueError, match=f"holds a study with {name} 1, here it is 2: --anew begins again"):
        opened(tmp_path).__enter__()
    monkeypatch.delenv(name)
    with pytest.raises(ValueError, match=f"holds a study with {name} 1, here it is None"):
        opened(tmp_path).__enter__()


def test_variables_that_change_nothing_that_runs_do_not_matter(tmp_path, monkeypatch):
    with opened(tmp_path) as study:
        take(study, until="a")
    monkeypatch.setenv("FULLSTRIDE_QUIET", "1")
    monkeypatch.setenv("HOMEPAGE", "elsewhere")
    with opened(tmp_path) as study:
        assert list(study.parts) == ["a"]


def test_anew_begins_again_and_keeps_what_there_was(tmp_path):
    folder = tmp_path / "study"
    said: list[str] = []
    for commit in ("abc", "def", "ghi"):
        with opened(folder, conditions=HERE | {"commit": commit}, anew=True, say=said.append) as study:
            assert study.parts == {}
            study.record(commit, {})
    assert list(content(folder)["parts"]) == ["ghi"]
    assert [list(content(tmp_path / f"study-before-{i}")["parts"]) for i in (1, 2)] == [["abc"], ["def"]]
    assert said == [f"what there was is in {tmp_path / f'study-before-{i}'} now" for i in (1, 2)]


@pytest.mark.parametrize("num_moved", [0, 1, 2])
def test_anew_that_was_killed_while_it_put_things_aside_can_be_asked_again(tmp_path, monkeypatch, num_moved):
    folder = tmp_path / "study"
    moved: list[str] = []
    with opened(folder) as study:
        take(study)
    for name in ("report.html", "picture.png"):
        (folder / name).write_text(name)
    rename = Path.rename

    def die(path, target):
        if len(moved) == num_moved:
            raise KeyboardInterrupt
        moved.append(path.name)
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            opened(folder, anew=True).__enter__()
    assert list(content(folder)["parts"]) == NAMES
    with opened(folder, anew=True) as study:
        assert study.parts == {}
    kept = {path.name for number in (1, 2) for path in (tmp_path / f"study-before-{number}").iterdir()}
    assert kept == {"study.json", "report.html", "picture.png"}


def test_anew_works_in_the_folder_one_stands_in(tmp_path, monkeypatch):
    (tmp_path / "study").mkdir()
    monkeypatch.chdir(tmp_path / "study")
    for part in ("a", "b"):
        with opened(Path("."), anew=True) as study:
            study.record(part, {})
    assert list(content(tmp_path / "study-before-1")["parts"]) == ["a"]
    assert list(content(tmp_path / "study")["parts"]) == ["b"]


@pytest.mark.parametrize("left_behind", ["run.lock", "study.json.partial"])
def test_what_a_process_that_was_killed_at_once_left_is_no_hindrance(tmp_path, left_behind):
    (tmp_path / left_behind).write_text("{")
    with opened(tmp_path) as study:
        take(study)
    assert list(content(tmp_path)["parts"]) == NAMES


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("all my work")
    with pytest.raises(ValueError, match="has other things in it"):
        opened(tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="expected a folder, got the file"):
        opened(tmp_path / "file").__enter__()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "parts": {}}', '{"format": 99}'])
def test_a_study_that_cannot_be_read_is_refused_in_one_line(tmp_path, text):
    (tmp_path / studies.FILE).write_text(text)
    with pytest.raises(ValueError, match=r"cannot be read: remove .*, or name another folder by --to$"):
        opened(tmp_path).__enter__()


def test_two_cannot_measure_in_one_folder(tmp_path):
    with opened(tmp_path), pytest.raises(FolderInUse, match="in use by process"):
        opened(tmp_path).__enter__()


def test_parts_that_another_process_recorded_while_this_one_waited_are_seen(tmp_path, monkeypatch):
    with opened(tmp_path) as study:
        study.record("a", {})
    take_lock = studies.lock.take

    def late(folder):
        monkeypatch.setattr(studies.lock, "take", take_lock)
        with opened(tmp_path) as other:
            other.record("b", {})
        return take_lock(folder)

    monkeypatch.setattr(studies.lock, "take", late)
    with opened(tmp_path) as study:
        study.record("c", {})
    assert list(content(tmp_path)["parts"]) == NAMES


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_the_shells_code_and_the_parts_kept(tmp_path, number):
    before = signal.getsignal(number)

    def work(study):
        study.record("a", {})
        os.kill(os.getpid(), number)
        study.record("b", {})  # the signal is there before this is

    with pytest.raises(StudyStopped) as caught, opened(tmp_path) as study:
        work(study)
    assert caught.value.code == 128 + number
    assert str(caught.value) == f"stopped by {number.name}; 1 parts are kept in {tmp_path}: the same command goes on"
    assert list(content(tmp_path)["parts"]) == ["a"]
    assert signal.getsignal(number) is before


def test_a_signal_while_a_part_is_written_counts_what_the_file_has(tmp_path, monkeypatch):
    replace = studies.durable.replace

    def replace_and_be_stopped(*args, **options):
        replace(*args, **options)
        os.kill(os.getpid(), signal.SIGTERM)

    def work(study):
        monkeypatch.setattr(studies.durable, "replace", replace_and_be_stopped)
        study.record("a", {})

    with pytest.raises(StudyStopped, match="; 1 parts are kept"), opened(tmp_path) as study:
        work(study)
    assert list(content(tmp_path)["parts"]) == ["a"]


def test_what_measures_cannot_take_a_signal_for_a_failure_of_its_own(tmp_path):
    def work(study):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            study.record("a", {})
        except Exception:
            pytest.fail("a signal is no Exception")

    with pytest.raises(StudyStopped), opened(tmp_path) as study:
        work(study)


def test_a_study_can_be_taken_in_another_thread(tmp_path):
    def work():
        with opened(tmp_path) as study:
            take(study)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert list(content(tmp_path)["parts"]) == NAMES


SCRIPT = """
import sys, threading
from pathlib import Path
from fullstride.bench import study
with study.opened(Path(sys.argv[1]), "ablate mlp", {}, {}) as found:
    for name in found.left(["a", "b"]):
        if name == "b" and sys.argv[2] == "wait":
            print("waiting", flush=True)
            threading.Event().wait()
        found.record(name, {"value": name})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_process_that_was_killed_is_continued_by_the_same_command(tmp_path, number):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "study")]
    with subprocess.Popen([*command, "wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("[1/2] a: done")
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(number)
        process.communicate()
    assert process.returncode != 0
    assert list(content(tmp_path / "study")["parts"]) == ["a"]
    again = subprocess.run([*command, "go"], capture_output=True, text=True, check=True)
    assert again.stdout.splitlines() == ["1 of 2 parts were done before: going on", "[2/2] b: done"]
    assert content(tmp_path / "study")["parts"] == {"a": {"value": "a"}, "b": {"value": "b"}}


def draw(figure):
    figure.subplots().plot([1, 2], [3, 4])


def test_the_report_has_the_sections_the_conditions_and_a_picture(tmp_path):
    with opened(tmp_path) as study:
        sections = [Section("What was found", "Fusion earns <most>.", [Figure("A line.", draw)])]
        paths = study.write_report("Ablation of mlp", "In short.", sections, Figure("A line.", draw))
    assert paths == [tmp_path / "report.html", tmp_path / "picture.png"]
    text = paths[0].read_text()
    for part in ("ablate mlp", "In short.", "Fusion earns &lt;most&gt;.", "How it was taken", "a CPU", "usable cores"):
        assert part in text
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_no_report_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said: list[str] = []
    with opened(tmp_path, say=said.append) as study:
        assert study.write_report("t", "l", [], Figure("c", draw)) == []
    assert said == ["no picture: the report needs matplotlib, which is not there: pip install 'fullstride[report]'"]


def test_no_number_that_json_lacks_gets_into_the_file(tmp_path):
    with opened(tmp_path) as study:
        study.record("a", {"value": 1.0})
        with pytest.raises(ValueError, match="not JSON compliant"):
            study.record("b", {"value": float("nan")})
        assert list(study.parts) == ["a"]
    assert list(content(tmp_path)["parts"]) == ["a"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (5400, "1 h 30 min")]
)
def test_times_are_said_in_the_unit_that_suits(seconds, text):
    assert studies.as_time(seconds) == text


def test_a_study_goes_where_one_says_or_under_its_names():
    assert studies.folder_of("tune", "mlp", None) == Path("studies/tune-mlp")
    assert studies.folder_of("tune", "mlp", Path("x")) == Path("x")
