"""fullstride generate: of a file, of a run, and of what is neither."""

import io
import re
import subprocess
import sys

import pytest
import torch

from fullstride import cli, exchange
from fullstride.exchange import SavedModel
from fullstride.generation import generate
from fullstride.models import llama
from fullstride.tokens import Characters

from ..patience import PATIENCE
from . import commands
from .commands import one_line

TEXT = "the king went out, and the queen\nwent in.\n" * 60
SPEED = re.compile(r"prompt \d+ tokens, \d+ tokens/s; text \d+ tokens(, \d+ tokens/s)?")
LLAMA = [
    "--model.width", "16", "--model.layers", "1", "--model.heads", "2", "--model.hidden", "24", "--model.context", "16",
    "--data.workers", "0", "--micro-batch", "2", "--steps", "2", "--evaluation.every", "1", "--checkpoints.every", "1",
    "--samples.tokens", "0", "--threads", "1", "--precision", "fp32", "--quiet", "--no-report",
]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    """Writes tokens of its own: bos and eos have no chance, so a text is as long as it was asked for."""
    torch.manual_seed(0)
    shape = {"width": 16, "layers": 1, "heads": 2, "kv_heads": 1, "hidden": 24, "context": 32, "tied": False}
    tokenizer = Characters(TEXT)
    built = llama.build(vocabulary=tokenizer.size, **shape)
    with torch.no_grad():
        built.head.weight[: 3 + 256] = 0
        built.head.weight[3 + 256 :] *= 200
    whole = shape | {"vocabulary": tokenizer.size, "rope_base": 10000.0, "eps": 1e-5}
    return built, SavedModel(whole, built.state_dict(), tokenizer)


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.bin"
    exchange.write(path, model[1])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Its data is gone afterwards."""
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "text.txt"
    text.write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FULLSTRIDE_DATA", str(folder / "data"))
        words = ["train", "llama-char", "--run", str(folder / "run"), "--data.path", str(text), *LLAMA]
        assert cli.main(words) == 0
    text.unlink()
    return folder / "run"


def written(capsys, *words):
    """(text, last line on stderr)"""
    capsys.readouterr()
    assert cli.main(["generate", *map(str, words)]) == 0
    out, err = capsys.readouterr()
    return out, one_line(err)


def expected(model, text, num_tokens, **options):
    tokenizer = model[1].tokenizer
    prompt = [tokenizer.bos, *tokenizer.encode(text)]
    return tokenizer.decode([*prompt, *generate(model[0], prompt, num_tokens, **options)]) + "\n"


def test_text_follows_the_prompt_and_speed_goes_to_stderr(model, file, capsys):
    out, err = written(capsys, file, "--prompt", "the king", "--tokens", 50)
    assert out == expected(model, "the king", 50)
    assert SPEED.fullmatch(err)
    assert err.startswith("prompt ")
    assert "; text 50 tokens, " in err


def test_options_are_those_of_generation(model, file, capsys):
    words = ["--tokens", 30, "--temperature", 9, "--top-p", 0.7, "--seed", 9]
    out, _ = written(capsys, file, "--prompt", "queen", *words)
    assert out == expected(model, "queen", 30, temperature=9, top_p=0.7, seed=9)
    assert out != expected(model, "queen", 30)


def test_an_empty_prompt_starts_a_text(model, file, capsys):
    out, _ = written(capsys, file, "--tokens", 12, "--temperature", 0)
    assert out == expected(model, "", 12, temperature=0)


def test_a_prompt_can_come_from_standard_input(model, file, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("went \u00e9\r\n".encode())))
    out, _ = written(capsys, file, "--prompt", "-", "--tokens", 5)
    assert out == expected(model, "went \u00e9\r\n", 5)


def test_standard_input_that_is_no_text_is_one_line(file, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\xff")))
    assert cli.main(["generate", str(file), "--prompt", "-"]) == 2
    assert "--prompt -: expected UTF-8 on standard input" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("end", ["bos", "eos"])
def test_a_text_ends_where_those_it_learnt_from_end(model, file, capsys, monkeypatch, end):
    tokenizer = model[1].tokenizer
    first, *_ = tokenizer.encode("k", start=False)
    monkeypatch.setattr("fullstride.generation.generate", lambda *_: iter([first, getattr(tokenizer, end), first]))
    out, err = written(capsys, file)
    assert out == "k\n"
    assert "; text 2 tokens" in err


def test_a_run_writes_without_its_data(run, capsys):
    out, err = written(capsys, run, "--prompt", "the king", "--tokens", 20, "--checkpoint", "last")
    assert out.startswith("the king")
    assert SPEED.fullmatch(err)


def test_a_checkpoint_is_chosen(run, capsys):
    texts = [written(capsys, run, "--seed", 3, "--checkpoint", which)[0] for which in ("1", "2", "last")]
    assert texts[1] == texts[2] != texts[0]


def test_another_tokenizer_can_be_named(model, file, tmp_path, capsys):
    path = Characters(TEXT.upper()).save(tmp_path)
    out, _ = written(capsys, file, "--tokenizer", path, "--tokens", 50)
    assert out == expected(model, "", 50).upper()


def test_controls_do_not_reach_a_terminal(monkeypatch, model, file, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    capsys.readouterr()
    assert cli.main(["generate", str(file), "--prompt", "a\x1b[2Jb\tc\n", "--tokens", "1"]) == 0
    assert capsys.readouterr().out.startswith("a\ufffd[2Jb\tc\n")


def test_an_interrupt_ends_the_text_and_shows_the_speed(file, capsys, monkeypatch):
    def interrupted(*_):
        yield 259
        yield 260
        raise KeyboardInterrupt

    monkeypatch.setattr("fullstride.generation.generate", interrupted)
    assert cli.main(["generate", str(file)]) == 130
    out, err = capsys.readouterr()
    assert out.endswith("\n")
    assert "; text 2 tokens" in one_line(err)


def test_a_closed_pipe_ends_it_without_a_word(file):
    command = [sys.executable, "-m", "fullstride", "generate", str(file), "--tokens", "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(10)
        process.stdout.close()
        assert process.wait(timeout=PATIENCE) == 1
        assert process.stderr.read() == b""


def test_a_run_of_another_recipe_is_one_line(tmp_path, capsys):
    assert commands.train(tmp_path / "run") == 0
    capsys.readouterr()
    assert cli.main(["generate", str(tmp_path / "run")]) == 2
    line = one_line(capsys.readouterr().err)
    assert line.endswith("run is a run of recipe mlp, which writes no text; give one of a llama recipe")


def test_a_model_without_a_tokenizer_is_one_line(file, tmp_path, capsys):
    (tmp_path / "alone.bin").write_bytes(file.read_bytes())
    assert cli.main(["generate", str(tmp_path / "alone.bin")]) == 2
    assert "--tokenizer" in one_line(capsys.readouterr().err)


def test_a_tokenizer_that_does_not_fit_is_one_line(file, tmp_path, capsys):
    path = Characters("0123456789 and all the letters: bdfjlmpsvxyz").save(tmp_path)
    assert cli.main(["generate", str(file), "--tokenizer", str(path)]) == 2
    assert "expected a tokenizer of " in one_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere"], "there is no nowhere: give a run folder, or"),
        (["FILE", "--temperature", "-1"], "expected a number from 0 on, got '-1'"),
        (["FILE", "--temperature", "warm"], "expected a number from 0 on, got 'warm'"),
        (["FILE", "--top-p", "0"], "expected a number above 0 and at most 1, got '0'"),
        (["FILE", "--top-p", "nan"], "expected a number above 0 and at most 1, got 'nan'"),
        (["FILE", "--tokens", "0"], "expected a whole number from 1 on, got '0'"),
        (["FILE", "--seed", "x"], "expected a whole number from 0 to 2^63 - 1, got 'x'"),
        (["FILE", "--checkpoint", "nest"], "--checkpoint: expected best, last or the number of a step, got 'nest'"),
        (["FILE", "--tokenizer", "none.model"], "none.model"),
    ],
)
def test_bad_input_is_one_line(file, words, line, capsys):
    arguments = ["generate", *(str(file) if word == "FILE" else word for word in words)]
    code: object
    try:
        code = cli.main(arguments)
    except SystemExit as ended:  # of the parser
        code = ended.code
    assert code == 2
    assert line in one_line(capsys.readouterr().err)
