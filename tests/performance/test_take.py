import json

import pytest
from benchmarks import take
from benchmarks.suites import Suite

from .made_up import CONDITIONS, kernel

# Writes what `fullstride bench kernels --json FILE` would, with the commit of the tree it stands in.
MEASURE = """
import json, subprocess, sys
commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
found = json.loads(FOUND)
found["conditions"]["commit"] = commit + SUFFIX
open(sys.argv[sys.argv.index("--json") + 1], "w").write(json.dumps(found))
"""
SUITES = {"kernels": Suite("kernels", (("measure",),)), "slow": Suite("slow", (("fail",),), usual=False)}


@pytest.fixture
def clone(repository, monkeypatch):
    """A repository whose suites are quick."""
    for name in take._CHANGES_WHAT_RUNS:
        monkeypatch.delenv(name, raising=False)

    def program(suffix="", **conditions):
        found = {"conditions": CONDITIONS | conditions, "results": [kernel("glu")]}
        text = MEASURE.replace("FOUND", repr(json.dumps(found))).replace("SUFFIX", repr(suffix))
        repository.commit(**{"measure.py": text, "fail.py": "raise SystemExit(3)\n", ".gitignore": "__pycache__\n"})

    program()
    repository.program = program
    return repository


def run(clone, *names):
    take.main(names, clone.root, SUITES)


def result(clone):
    content = json.loads((clone.root / "benchmarks" / "results" / "some-cpu-avx2" / "kernels.json").read_text())
    [part] = content["parts"]
    return part


def error_of(clone, capsys, *names):
    with pytest.raises(SystemExit, match="2"):
        run(clone, *names)
    [line] = capsys.readouterr().err.strip().splitlines()
    return line


def test_a_suite_becomes_a_file_named_by_cpu_and_instructions(clone, capsys):
    run(clone)
    part = result(clone)
    assert part["command"] == "python -m measure"
    assert part["conditions"]["commit"] == clone.git("rev-parse", "--short=12", "HEAD")
    assert part["results"][0]["op"] == "glu"
    assert "written: benchmarks/results/some-cpu-avx2/kernels.json" in capsys.readouterr().out


def test_load_is_recorded_and_what_nobody_recorded_is_null(clone):
    run(clone)
    part = result(clone)
    assert part["conditions"]["load"] == CONDITIONS["load"]
    assert part["conditions"]["load_at_end"] >= 0
    assert part["conditions"]["python"] is None
    assert part["results"][0]["milliseconds_spread"] is None


def test_a_changed_file_is_refused(clone, capsys):
    clone.write("measure.py", "print('changed')\n")
    assert error_of(clone, capsys) == (
        "take: expected a tree without uncommitted changes, got 1 changed or new file (measure.py);"
        " commit or stash, then run this again"
    )
    assert not (clone.root / "benchmarks").exists()


def test_a_new_file_is_refused(clone, capsys):
    clone.write("new.py", "")
    assert "got 1 changed or new file (new.py)" in error_of(clone, capsys)


def test_a_folder_without_git_is_refused(clone, capsys, tmp_path_factory):
    clone.root = tmp_path_factory.mktemp("plain")
    assert "expected a git clone with a commit, got none" in error_of(clone, capsys)


@pytest.mark.parametrize(
    ("name", "value"),
    [("FULLSTRIDE_HEAP", "0"), ("FULLSTRIDE_ISA", "avx2"), ("FULLSTRIDE_LIBRARY", "x.so"), ("FULLSTRIDE_NATIVE", "0"),
     ("FULLSTRIDE_PRECISION", "fp32"), ("FULLSTRIDE_WITHOUT", "fusion")],
)  # fmt: skip
def test_a_chosen_variant_is_refused(clone, capsys, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    expected = f"take: expected Fullstride as it comes, got {name} set; unset and run this again"
    assert error_of(clone, capsys) == expected


def test_the_folder_is_of_the_best_instructions_the_machine_has(clone):
    clone.program(isa="avx512_bf16", best_isa="amx")
    run(clone)
    assert (clone.root / "benchmarks" / "results" / "some-cpu-amx" / "kernels.json").exists()


def test_an_unknown_suite_is_one_line(clone, capsys):
    assert error_of(clone, capsys, "kernel") == "take: expected names of suites, got kernel; there are: kernels, slow"


def test_a_result_of_a_tree_that_changed_meanwhile_is_refused(clone, capsys):
    clone.program("-changed")
    assert "expected a result of commit" in error_of(clone, capsys)
    assert not (clone.root / "benchmarks").exists()


def test_what_was_taken_before_a_failure_is_kept(clone, capsys):
    assert "returned non-zero exit status 3" in error_of(clone, capsys, "kernels", "slow")
    assert result(clone)["results"]


def test_paths_of_the_machine_are_left_out(clone):
    clone.program(heap="kept in /home/someone/x.so and ~/cache/y, 3 GB/s, 1/2")
    run(clone)
    assert result(clone)["conditions"]["heap"] == "kept in PATH and PATH, 3 GB/s, 1/2"


def test_one_command_of_a_suite_leaves_its_other_parts_as_they_are(clone):
    two = {"kernels": Suite("kernels", (("measure", "first"), ("measure", "second")))}
    take.main(["kernels"], clone.root, two)
    clone.git("add", "-A")
    clone.git("commit", "-qm", "results")
    before = _parts(clone)
    take.main(["kernels:second"], clone.root, two)
    after = _parts(clone)
    assert list(after) == ["python -m measure first", "python -m measure second"]
    assert after["python -m measure first"] == before["python -m measure first"]
    assert after["python -m measure second"]["commit"] != before["python -m measure second"]["commit"]


def test_two_commands_of_a_suite_are_both_taken(clone):
    two = {"kernels": Suite("kernels", (("measure", "first"), ("measure", "second")))}
    take.main(["kernels"], clone.root, two)
    clone.git("add", "-A")
    clone.git("commit", "-qm", "results")
    before = _parts(clone)
    take.main(["kernels:first", "kernels:second"], clone.root, two)
    after = _parts(clone)
    assert after.keys() == before.keys()
    assert all(after[command]["commit"] != before[command]["commit"] for command in before)


def test_a_word_that_no_command_of_the_suite_has_is_refused(clone, capsys):
    assert "expected a word of the commands of suite kernels, got 'third'" in error_of(clone, capsys, "kernels:third")


def _parts(clone):
    path = clone.root / "benchmarks" / "results" / "some-cpu-avx2" / "kernels.json"
    return {part["command"]: part["conditions"] for part in json.loads(path.read_text())["parts"]}
