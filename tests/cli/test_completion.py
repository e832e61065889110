"""The completion scripts, in the shells they are for."""

import shutil
import subprocess
import sys

import pytest

from fullstride import recipes
from fullstride.cli import completion, shells

from ..patience import PATIENCE

# Each calls what Tab calls, with the words of the line as arguments, and prints what is offered, one a line.
DRIVERS = {
    "bash": """
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _fullstride; printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "zsh": """
        compadd() { if [[ $1 == -a ]]; then print -rl -- ${(P)2}; else shift; print -rl -- $@; fi }
        _describe() { [[ $1 == -o ]] && shift; local entry; for entry in ${(P)2}; do print -r -- ${entry%%:*}; done }
        _files() { print -rl -- *(N) }
        _message() { }
        source $1; shift
        words=("$@"); CURRENT=$#; PREFIX=${words[CURRENT]}; _fullstride
    """,
    "fish": """
        source $argv[1]
        complete -C (string join " " -- $argv[2..]) | string replace -r "\\t.*" ""
        true
    """,
}
SHELLS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name}"))
    for name in completion.SHELLS
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    table = completion.table()
    for shell in completion.SHELLS:
        (folder / shell).write_text(shells.script(shell, table))
    return folder


@pytest.fixture
def complete(scripts, tmp_path):
    """complete(shell, words) -> what Tab offers for the last word, in a folder with a run and one that is none."""
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.yaml").touch()
    (tmp_path / "runs" / "no-run").mkdir()

    def complete(shell: str, *words: str) -> list[str]:
        options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
        arguments = [*([] if shell == "fish" else ["driver"]), str(scripts / shell), "fullstride", *words]
        command = [shell, *options, "-c", DRIVERS[shell], *arguments]
        home = {"HOME": str(tmp_path), "PATH": "/usr/local/bin:/usr/bin:/bin"}
        done = subprocess.run(command, cwd=tmp_path, env=home, capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        # zsh and fish leave out themselves what does not begin like the last word
        return [line for line in done.stdout.splitlines() if line.startswith(words[-1]) and line]

    return complete


@pytest.mark.parametrize("shell", SHELLS)
def test_commands(complete, shell):
    assert sorted(complete(shell, "re")) == ["recipes", "report", "resume"]


@pytest.mark.parametrize("shell", SHELLS)
def test_recipes(complete, shell):
    assert sorted(complete(shell, "train", "")) == sorted(recipes.NAMES)


@pytest.mark.parametrize("shell", SHELLS)
def test_fields_of_a_recipe(complete, shell):
    assert sorted(complete(shell, "train", "mlp", "--optimizer.w")) == ["--optimizer.weight-decay"]
    assert sorted(complete(shell, "train", "mlp", "--steps", "5", "--data.a")) == ["--data.augment"]


@pytest.mark.parametrize("shell", SHELLS)
def test_fields_after_a_config_file(complete, shell):
    assert sorted(complete(shell, "train", "--config", "x.yaml", "--data.no-a")) == ["--data.no-augment"]


@pytest.mark.parametrize("shell", SHELLS)
def test_options_of_the_command_itself(complete, shell):
    assert complete(shell, "train", "mlp", "--dry") == ["--dry-run"]
    assert complete(shell, "export", "runs/first", "--f") == ["--force"]


@pytest.mark.parametrize("shell", SHELLS)
def test_values_that_can_be_listed(complete, shell):
    assert sorted(complete(shell, "train", "mlp", "--optimizer.name", "ad")) == ["adam", "adamw"]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("command", ["resume", "report", "evaluate", "export"])
def test_run_folders_and_no_others(complete, shell, command):
    assert complete(shell, command, "") == ["runs/first"]
    assert complete(shell, command, "runs/") == ["runs/first"]


@pytest.mark.parametrize("shell", SHELLS)
def test_run_folders_and_files_where_both_will_do(complete, shell, tmp_path):
    (tmp_path / "model.gguf").touch()
    offered = complete(shell, "generate", "")
    assert "runs/first" in offered
    assert "model.gguf" in offered
    assert "runs/no-run" not in offered
    assert complete(shell, "generate", "runs/first", "--temp") == ["--temperature"]


@pytest.mark.parametrize("shell", SHELLS)
def test_second_level_words(complete, shell):
    assert sorted(complete(shell, "bench", "")) == ["kernels", "step"]
    assert complete(shell, "data", "m") == ["mnist"]
    assert complete(shell, "completion", "z") == ["zsh"]


def test_bash_offers_a_folder_with_a_space_as_one_word(complete, tmp_path):
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "config.yaml").touch()
    assert complete("bash", "resume", "my") == ["my run"]


def test_the_script_is_made_without_torch():
    code = (
        "import sys; from fullstride.cli import main\n"
        "main(['completion', 'bash']); print([name for name in ('torch', 'tyro', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert "complete -F _fullstride fullstride" in done.stdout
