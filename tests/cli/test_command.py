"""The command as a user runs it, in processes of its own."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fullstride import __version__, _native, cli
from fullstride.backends import cache
from fullstride.cli import command, train
from fullstride.machine import memory
from fullstride.recipes import config_files

from ..patience import PATIENCE
from .commands import one_line


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "fullstride", *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=PATIENCE)


def test_version():
    assert run("--version").stdout == f"fullstride {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_waits_for_no_large_module(arguments):
    large = ("torch", "numpy", "tyro", "rich", "yaml", "matplotlib", "safetensors", "psutil")
    code = f"import sys; from fullstride.cli import main\ntry: main({arguments})\nfinally: print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = ast.literal_eval(done.stdout.splitlines()[-1])
    assert [name for name in large if name in loaded] == []


def test_help_lists_the_commands():
    out = run("--help").stdout
    names = ["train", "resume", "recipes", "report", "evaluate", "export", "data", "info", "cache", "compare", "bench"]
    assert all(re.search(rf"^ +{name} +\S", out, re.MULTILINE) for name in [*names, "completion"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("trian", "fullstride: unknown command 'trian'; did you mean 'train'?"),
        ("info --mesure", "fullstride info: unknown option '--mesure'; did you mean '--no-measure'?"),
        ("report a b", "fullstride report: did not expect b; see `fullstride report --help`"),
        ("export a", "fullstride export: the following arguments are required: --to; see `fullstride export --help`"),
        ("bench", "fullstride bench: the following arguments are required: SUBJECT; see `fullstride bench --help`"),
        ("bench kernels --rounds 0", "fullstride bench kernels: argument --rounds: expected a whole number from 1 on"),
        ("completion tcsh", "fullstride completion: argument SHELL: expected one of bash, zsh, fish, got 'tcsh'; see"),
        ("compare", "fullstride compare: expected a recipe or --config FILE"),
    ],
)
def test_bad_usage_is_refused_in_one_line(words, line, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    assert one_line(capsys.readouterr().err).startswith(line)


def documented_commands() -> list[str]:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "training.md").read_text() + (docs / "llama.md").read_text()
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ") for language, fence in fences if not language for line in fence.splitlines()]
    return [line for line in lines if line.startswith("fullstride ")]


@pytest.mark.parametrize("line", documented_commands())
def test_the_commands_of_the_documentation_are_understood(line):
    options = command._parse(shlex.split(line, comments=True)[1:])
    if getattr(options, "takes_fields", False) and options.config is None:
        train.configure(train.recipe_of(options), None, options.fields)


def test_the_config_file_of_the_documentation_is_one():
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    assert config_files.from_yaml(re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]).steps == 200


def test_no_command_shows_the_help(capsys):
    assert cli.main([]) == 2
    assert "train a recipe" in capsys.readouterr().err


def test_an_error_of_the_system_names_the_file_and_no_number(capsys, monkeypatch):
    def fail(options):
        raise OSError(28, "No space left on device", "somewhere/file")

    monkeypatch.setattr("fullstride.cli.train._recipes", fail)
    assert cli.main(["recipes"]) == 1
    assert one_line(capsys.readouterr().err) == "fullstride: somewhere/file: No space left on device"


def test_info_prints_facts_and_rates_as_json():
    done = run("info", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["fullstride"]["version"] == __version__
    assert facts["kernels"]["isa"] == _native.isa()
    assert facts["cores"]["usable"] >= 1
    assert facts["measured"]["gflops"]["fp32"] > 0
    assert all(facts["measured"]["gigabytes_per_second"][mix] > 0 for mix in ("read", "write", "update"))


def test_info_is_readable_text():
    done = run("info", "--no-measure")
    assert done.returncode == 0, done.stderr
    for label in ("CPU", "cores", "caches", "memory", "kernels", "torch"):
        assert re.search(rf"^{label} ", done.stdout, re.MULTILINE), label


def test_info_without_the_library_says_so_in_one_line():
    done = run("info", "--no-measure", FULLSTRIDE_NATIVE="0")
    assert done.returncode == 0
    assert one_line(done.stderr) == "fullstride: FULLSTRIDE_NATIVE=0, using torch instead of the kernels"
    assert "references serve" in done.stdout


def test_impossible_isa_is_one_line_and_names_the_possible_ones():
    done = run("info", "--no-measure", FULLSTRIDE_ISA="vax")
    assert done.returncode == 2
    assert re.search(r"^fullstride: ISA 'vax' cannot run here; .*portable", one_line(done.stderr))


def test_bench_kernels_prints_a_table_and_writes_json(tmp_path):
    file = tmp_path / "result.json"
    done = run("bench", "kernels", "--only", "layer_norm", "--rounds", "1", "--isa", "portable", "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^layer_norm$", done.stdout, re.MULTILINE)
    assert re.search(r"\d+\.\d\dx \[.*\] torch  target 1\.3x (met|MISSED)", done.stdout)
    content = json.loads(file.read_text())
    assert content["conditions"]["isa"] == "portable"
    assert content["conditions"]["heap"] == "as it comes"
    assert {entry["op"] for entry in content["results"]} == {"layer_norm"}
    assert "target 85%" not in done.stdout  # most of the time are page faults
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_memory_as_it_comes_is_that_of_a_process_that_never_kept_its_heap(monkeypatch):
    started = []

    def execve(path, command, environment):
        started.append((command[3:], environment["FULLSTRIDE_HEAP"]))
        raise SystemExit

    monkeypatch.setattr(memory, "heap_kept", lambda: True)
    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(SystemExit):
        cli.main(["bench", "kernels", "--rounds", "1"])
    assert started == [(["bench", "kernels", "--rounds", "1"], "0")]


def test_with_the_heap_kept_kernels_are_held_against_the_bandwidth():
    done = run("bench", "kernels", "--only", "rms_norm", "--rounds", "1", "--keep-heap")
    assert re.search(r"heap +kept: M_MMAP_MAX=0", done.stdout)
    assert re.search(r"\d GB/s, \d+% of write", done.stdout)


def test_unknown_kernel_is_one_line_and_names_the_known_ones():
    done = run("bench", "kernels", "--only", "nonsense")
    assert done.returncode == 2
    assert re.search(r"^fullstride: no kernel rows named nonsense; there are: .*layer_norm", one_line(done.stderr))


def test_unwritable_json_file_is_found_before_measuring(tmp_path):
    done = run("bench", "kernels", "--json", str(tmp_path / "missing" / "result.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"^fullstride: cannot write .*result.json: No such file", one_line(done.stderr))
    done = run("bench", "kernels", "--json", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "not a regular file" in one_line(done.stderr)


def test_failed_run_leaves_an_earlier_json_file_alone(tmp_path):
    file = tmp_path / "result.json"
    file.write_text("earlier")
    assert run("bench", "kernels", "--json", str(file), "--isa", "vax").returncode == 2
    assert file.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [file]


def test_isa_without_the_library_is_refused():
    done = run("bench", "kernels", "--isa", "portable", FULLSTRIDE_NATIVE="0")
    assert done.returncode == 2
    assert "there is no kernel library" in done.stderr


for_buffers = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


def run_into(stdout, unbuffered, *arguments):
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "fullstride", *arguments]
    return subprocess.run(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)


@for_buffers
@pytest.mark.parametrize("arguments", [["info", "--no-measure"], ["completion", "bash"], ["--help"], ["--version"]])
def test_a_reader_that_stops_early_is_no_error_message(arguments, unbuffered):
    reader, output = os.pipe()
    os.close(reader)  # before the first word, so that it does not matter how much is written when
    try:
        done = run_into(output, unbuffered, *arguments)
    finally:
        os.close(output)
    assert done.stderr == ""
    assert done.returncode == 1 or arguments[0].startswith("-")  # argparse takes no notice


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@for_buffers
def test_an_output_that_cannot_be_written_is_one_line(unbuffered):
    with open("/dev/full", "w") as stdout:
        done = run_into(stdout, unbuffered, "completion", "bash")
    assert "No space left on device" in one_line(done.stderr)
    assert done.returncode == 1


def test_the_cache_can_be_seen_and_cleared(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FULLSTRIDE_CACHE", str(tmp_path))
    assert cli.main(["cache"]) == 0
    assert one_line(capsys.readouterr().out).startswith(f"nothing is kept yet: there is no {tmp_path}/machine.json")
    found = {"our fp32 product": "fine", "torch's bf16 product": "dies with SIGILL"}
    rates = {"fp32": {"few rows": {"torch": 90.0, "native": 100.4}}}
    cache.keep(cache.Findings(found, rates, 0.0, busy="load 9.0 on 2 cores"), threads=2)
    assert cli.main(["cache", "show"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/machine.json", "", cache.key(2),
        "  taken 1970-01-01 00:00 UTC under load (load 9.0 on 2 cores), to be taken again",
        "  fp32 few rows   native 100, torch 90 GFLOP/s",
        "  torch's bf16 product: dies with SIGILL here",
        "  1 of 2 candidates are fine",
    ]  # fmt: skip
    assert cli.main(["cache", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[cache.key(2)]["rates"] == rates
    assert cli.main(["cache", "clear"]) == 0
    assert one_line(capsys.readouterr().out) == f"removed {tmp_path}/machine.json"
    assert cli.main(["cache", "clear"]) == 0
    assert one_line(capsys.readouterr().out) == f"nothing to remove: there is no {tmp_path}/machine.json"
    with pytest.raises(SystemExit):
        cli.main(["cache", "forget"])
    assert "expected one of show, clear, got 'forget'" in one_line(capsys.readouterr().err)


def test_looking_at_the_cache_does_not_wait_for_torch():
    code = "import sys; from fullstride import cli; cli.main(['cache']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("False\n"), done.stderr
