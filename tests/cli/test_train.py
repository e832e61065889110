"""fullstride train, resume, recipes: with a real trainer where it trains, with a stand-in where it fails."""

import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from fullstride import cli, recipes
from fullstride.cli.train import configure
from fullstride.recipes import config_files
from fullstride.run_folder.lock import FolderInUse
from fullstride.train import errors, trainer

from .commands import TINY, one_line, train


class Stand:
    """Instead of the trainer: raises, or keeps what it was given."""

    raises: BaseException | None = None
    config: Any = None
    run: Any = None

    def __init__(self, config, run=None):
        Stand.config, Stand.run = config, run

    def fit(self):
        assert Stand.raises is not None
        raise Stand.raises


@pytest.fixture
def ends_by(monkeypatch):
    """ends_by(error) makes every training end so."""
    monkeypatch.setattr(trainer, "Trainer", Stand)
    return lambda error: monkeypatch.setattr(Stand, "raises", error)


def test_training_leaves_a_run_and_says_where_everything_is(tmp_path, capsys):
    run = tmp_path / "run"
    assert train(run, report=True) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"^done +4 steps", out)
    assert re.search(r"^best +step [24]: loss [\d.]+, accuracy [\d.]+$", out, re.MULTILINE)
    assert f"report  {run / 'report.html'}\n" in out
    assert f"run     {run}\n" in out
    assert "<html" in (run / "report.html").read_text()


def test_the_config_of_the_run_is_that_of_the_options(tmp_path):
    train(tmp_path / "run", "--optimizer.lr", "0.25")
    config = config_files.read(tmp_path / "run" / "config.yaml")
    assert (config.optimizer.lr, config.steps, config.recipe) == (0.25, 4, "mlp")


def test_a_finished_run_can_be_resumed_and_has_nothing_to_do(tmp_path, capsys):
    train(tmp_path / "run")
    capsys.readouterr()
    assert cli.main(["resume", str(tmp_path / "run"), "--quiet", "--no-report"]) == 0
    assert re.search(r"^done +4 steps", capsys.readouterr().out)
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_folder_with_a_run_is_not_trained_over(tmp_path, capsys):
    train(tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    capsys.readouterr()
    assert train(tmp_path / "run") == 2
    assert f"fullstride resume {tmp_path / 'run'}" in one_line(capsys.readouterr().err)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_options_stand_above_the_file_and_the_file_above_the_recipe(tmp_path, ends_by):
    ends_by(errors.RunEnded("over"))
    file = tmp_path / "config.yaml"
    file.write_text("recipe: mlp\nsteps: 77\noptimizer:\n  lr: 0.5\n")
    cli.main(["train", "--config", str(file), "--optimizer.lr", "0.125"])
    assert (Stand.config.steps, Stand.config.optimizer.lr) == (77, 0.125)
    assert Stand.config.data == recipes.mlp().data


def test_options_of_the_command_may_stand_anywhere(tmp_path, ends_by):
    ends_by(errors.RunEnded("over"))
    cli.main(["train", "--quiet", "mlp", "--steps", "99", "--run", str(tmp_path), "--seed", "3"])
    assert (Stand.config.steps, Stand.config.seed, Stand.run) == (99, 3, tmp_path)


def test_train_alone_lists_the_recipes(capsys):
    assert cli.main(["train"]) == 2
    out = capsys.readouterr().out
    assert all(f"  {name} " in out and recipes.describe(name) in out for name in recipes.NAMES)


def test_recipes_are_listed_one_a_line(capsys):
    assert cli.main(["recipes"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(recipes.NAMES)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["mpl"], "unknown recipe 'mpl'; did you mean 'mlp'?"),
        (["mlp", "--optimizer.lrr", "1"], "unknown option --optimizer.lrr; did you mean --optimizer.lr?"),
        (["mlp", "--steps", "many"], "--steps: expected a whole number or None, got many"),
        (["--steps", "5"], "expected a recipe before --steps, as in `fullstride train mlp --steps ...`"),
        (["--config", "none.yaml"], "cannot read none.yaml: No such file or directory; give a YAML file with a line"
                                    " 'recipe: ...'"),
        (["mlp", "--config", "a.yaml"], "expected a recipe or --config, got both mlp and a.yaml; the file names its"
                                        " recipe"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(words, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, one_line(err)) == ("", f"fullstride: {line}")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_field_in_a_file_names_the_file_and_the_nearest_field(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("recipe: mlp\noptimizer:\n  lrr: 1\n")
    assert cli.main(["train", "--config", str(tmp_path / "c.yaml")]) == 2
    assert re.search(r"c\.yaml: .*'optimizer\.lrr'; did you mean 'optimizer\.lr'\?$", one_line(capsys.readouterr().err))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Diverged("no longer finite"), 3),
        (errors.DataWorkerDied("a worker died"), 4),
        (FolderInUse("in use by process 7"), 5),
        (errors.Interrupted(signal.SIGINT), 130),
        (errors.Interrupted(signal.SIGTERM), 143),
        (OSError("disk full"), 1),
        (FileNotFoundError("no MNIST here: `fullstride data mnist` gets it"), 2),
        (MemoryError(), 1),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=repr,
)
def test_how_a_run_ended_is_one_line_and_an_exit_code(error, code, ends_by, capsys):
    ends_by(error)
    assert cli.main(["train", "mlp"]) == code
    assert one_line(capsys.readouterr().err).startswith("fullstride: ")
    assert code in errors.EXIT_CODES


def test_too_little_memory_names_the_options_that_help(ends_by, capsys):
    ends_by(MemoryError())
    cli.main(["train", "mlp"])
    assert "--micro-batch" in one_line(capsys.readouterr().err)


def test_an_unexpected_error_is_not_hidden(ends_by):
    ends_by(RuntimeError("a mistake of ours"))
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        cli.main(["train", "mlp"])


def test_help_lists_options_and_exit_codes(capsys):
    assert cli.main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(option in out for option in ("--config FILE", "--run DIR", "--dry-run", "--quiet"))
    assert all(f"  {code:<4} {meaning}" in out for code, meaning in errors.EXIT_CODES.items())


def test_help_of_a_recipe_lists_its_fields(capsys):
    assert cli.main(["train", "mlp-mnist", "--help"]) == 0
    out = capsys.readouterr().out
    assert recipes.describe("mlp-mnist") in " ".join(out.split())
    assert "--optimizer.lr FLOAT" in out


def test_dry_run_tells_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "mlp", *TINY, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^{label} ", out, re.MULTILINE) for label in ("model", "data", "training", "memory", "time"))
    assert "83 parameters" in out  # 6 x 8 + 8 + 8 x 3 + 3
    assert list(tmp_path.iterdir()) == []


def test_bad_input_does_not_wait_for_torch():
    code = (
        "import sys; from fullstride.cli import main\n"
        "for words in (['train', 'mlp', '--stepps', '1'], ['resume', 'nowhere'], ['recipes'], ['report', 'nowhere'],\n"
        "              ['evaluate', 'nowhere'], ['export', 'nowhere', '--to', 'x.safetensors'], ['train']):\n"
        "    main(words)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


LOADING = """
import builtins, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started without
load, seen = builtins.__import__, []
def interrupted(name, *arguments):
    if name == "numpy" and not seen:
        seen.append(name)
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:  # as torch does
            seen.append("lost")
    return load(name, *arguments)
builtins.__import__ = interrupted
from fullstride import cli
code = cli.main(sys.argv[1:])
print(seen, file=sys.stderr)
sys.exit(code)
"""


def test_an_interrupt_while_torch_is_loaded_is_not_lost(tmp_path):
    words = ["train", "mlp", *TINY, "--run", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", LOADING, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "fullstride: interrupted\n['numpy']\n")
    assert not (tmp_path / "run").exists()


def test_an_option_that_goes_back_to_the_recipes_optimizer_goes_back_to_its_values(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("recipe: mlp\noptimizer: {name: lamb, lr: 0.5, lookahead: true}\n")
    found = configure(None, file, ["--optimizer.name", "adamw"]).optimizer
    assert (found.name, found.lr, found.eps) == ("adamw", 3e-4, 1e-8)  # those of recipe mlp, not 0.5 for LAMB
    assert found.lookahead
    assert configure(None, file, ["--optimizer.name", "adamw", "--optimizer.lr", "7"]).optimizer.lr == 7
    assert configure(None, file, ["--optimizer.name", "adam"]).optimizer.lr == 1e-4
    assert configure(None, file, ["--optimizer.name", "lamb"]).optimizer.lr == 0.5
