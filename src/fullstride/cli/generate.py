"""fullstride generate: text from a trained language model, as it comes."""

import argparse
import io
import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .arguments import number, positive, seed
from .runs import check_which, warnings_alone
from .train import interrupts_held

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.llama import Llama
    from ..tokens import Tokenizer

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def add(commands: Any) -> None:
    generate = commands.add_parser(
        "generate",
        help="text from a language model, as it comes",
        description="Writes text that follows a prompt to standard output, and how fast that went to standard error."
        " The model is that of a run of a llama recipe, or one of another program: a llama2.c .bin, a Hugging Face"
        " folder, a .gguf, or a .safetensors of `fullstride export`.",
    )
    generate.add_argument("source", metavar="RUN_OR_FILE", type=Path, help="the run folder, or a model")
    generate.add_argument("--prompt", metavar="TEXT", default="", help="what to go on from; - reads standard input")
    generate.add_argument("--tokens", metavar="N", type=positive, default=256, help="at most so many (default: 256)")
    generate.add_argument(
        "--temperature", metavar="T", type=number("a number from 0 on", lambda x: 0 <= x < math.inf), default=0.8,
        help="0 takes the likeliest token each time, 1 draws as the model says (default: 0.8)",
    )  # fmt: skip
    generate.add_argument(
        "--top-p", metavar="P", type=number("a number above 0 and at most 1", lambda x: 0 < x <= 1), default=0.95,
        help="draw from the fewest tokens that have this probability together (default: 0.95)",
    )  # fmt: skip
    generate.add_argument("--seed", metavar="S", type=seed, default=0, help="other seeds, other texts (default: 0)")
    generate.add_argument(
        "--checkpoint", metavar="WHICH", default="best", help="of a run: best (the default), last, or a step"
    )
    generate.add_argument("--tokenizer", metavar="FILE", type=Path, help="if the model brings none, or another one")
    generate.set_defaults(command=_generate)


def _generate(options: argparse.Namespace) -> int:
    check_which(options.checkpoint)
    text = _standard_input() if options.prompt == "-" else options.prompt
    with warnings_alone():
        model, tokenizer = _load(options.source, options.checkpoint, options.tokenizer)
    from ..generation import generate
    from ..machine import memory, threads

    memory.tune()
    threads.set_threads(None)
    prompt = [tokenizer.bos, *tokenizer.encode(text)]
    new = generate(model, prompt, options.tokens, options.temperature, options.top_p, options.seed)
    return _stream(prompt, new, tokenizer)


def _stream(prompt: list[int], new: Iterator[int], tokenizer: "Tokenizer") -> int:
    """Writes the prompt and what comes after it, token by token; at the end, how fast that was. The exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    feed, code = tokenizer.stream(), 0
    _write("".join(map(feed, prompt)))
    times = [time.perf_counter()]
    try:
        for token in new:
            times.append(time.perf_counter())
            if token in (tokenizer.bos, tokenizer.eos):  # so the texts it has learnt from begin and end
                break
            if token < tokenizer.size:  # a model may have more, for an even number
                _write(feed(token))
    except KeyboardInterrupt:
        code = 130
    _write("\n")
    print(_speed(len(prompt), times), file=sys.stderr)
    return code


def _speed(num_prompt: int, times: list[float]) -> str:
    """times: of the start, and of every token; the first one takes reading the prompt."""
    num_new = len(times) - 1
    if not num_new:
        return "no tokens"
    line = f"prompt {num_prompt} tokens, {num_prompt / (times[1] - times[0]):.0f} tokens/s; text {num_new} tokens"
    return line if num_new == 1 else f"{line}, {(num_new - 1) / (times[-1] - times[1]):.0f} tokens/s"


def _write(text: str) -> None:
    if text:
        # Bytes of a model that has learnt little, or the wrong thing, may be commands to the terminal.
        sys.stdout.write(_CONTROLS.sub("\ufffd", text) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def _standard_input() -> str:
    """As it is, its last line end too: models of text know those."""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"--prompt -: expected UTF-8 on standard input, got {error.reason} {error.start}") from None


def _load(source: Path, which: str, tokenizer_file: Path | None) -> tuple["Llama", "Tokenizer"]:
    from .. import tokens

    given = None if tokenizer_file is None else tokens.load(tokenizer_file)
    is_run = (source / "config.yaml").is_file()
    model, own = _load_run(source, which) if is_run else _load_file(source)
    tokenizer = given or own
    if tokenizer is None:
        raise ValueError(f"{source} has no tokenizer; name that of its tokens with --tokenizer FILE")
    vocabulary = model.embedding.num_embeddings
    if tokenizer.size > vocabulary:
        whose = source if given is None else tokenizer_file
        raise ValueError(f"{whose}: expected a tokenizer of {vocabulary} tokens, the model's, got {tokenizer.size}")
    return model, tokenizer


def _load_run(run: Path, which: str) -> tuple["Llama", "Tokenizer | None"]:
    """Without its data, which may be elsewhere."""
    from .. import tokens
    from ..recipes import config_files
    from ..recipes.llama import LlamaConfig

    config = config_files.read(run / "config.yaml")
    if not isinstance(config, LlamaConfig):
        raise ValueError(f"{run} is a run of recipe {config.recipe}, which writes no text; give one of a llama recipe")
    tokenizer = tokens.load(run) if tokens.find(run) else None
    with interrupts_held():
        from ..models import llama
        from ..train import evaluation
    weights = evaluation.find(run, which).tensors["model"]
    return _fill(llama, config.model.shape() | {"vocabulary": len(weights["embedding.weight"])}, weights), tokenizer


def _load_file(path: Path) -> tuple["Llama", "Tokenizer | None"]:
    from ..recipes import llama_files

    if not path.exists():
        raise ValueError(f"there is no {path}: give a run folder, or the file or folder of a model")
    with interrupts_held():
        from ..models import llama
    saved = llama_files.read(path)
    return _fill(llama, saved.shape, saved.tensors), saved.tokenizer


def _fill(llama: ModuleType, shape: dict[str, Any], weights: "dict[str, Tensor]") -> "Llama":
    model: Llama = llama.build(**shape)
    model.load_state_dict(weights)
    return model
