"""The suites of results: the commands that take them, and the sources that each result depends on."""

from pathlib import Path
from typing import Any, NamedTuple

_STEP = ("fullstride", "bench", "step")
_KERNELS = ("fullstride", "bench", "kernels")
_CLAIMS = ("fusion", "layer_norm", "step", "memory", "training")
_RECIPES = (
    "mlp", "mlp-mnist", "mlp-seven", "llama", "llama-char", "fastspeech2", "fastspeech2-quick", "clip", "clip-small",
)  # fmt: skip
_NUMERICS = ("weights", "second_moment", "states", "accumulation", "training_0", "training_1", "training_2")
# stories15M, with stock PyTorch's best settings as they were found by trial; some twelve minutes
_CURVES = (
    "benchmarks.llama_curves", "llama", "--data.vocabulary", "32000", "--micro-batch", "4", "--steps", "400",
    "--evaluation.batch", "4", "--seconds", "220", "--every", "40", "--valid-batches", "20", "--best", "fused,compile",
)  # fmt: skip


class Suite(NamedTuple):
    """commands: a module and its arguments each; all take --json FILE."""

    holds: str
    commands: tuple[tuple[str, ...], ...]
    usual: bool = True  # taken by `make bench` without names


SUITES = {
    "machine": Suite("rates of products and memory: what a machine reaches", (("benchmarks.machine",),)),
    "steps": Suite(
        "training steps against stock PyTorch",
        tuple((*_STEP, "--model", name) for name in ("mlp", "llama", "bert", "fastspeech2", "clip")),
    ),
    "recipes": Suite(
        "each recipe as it is against stock PyTorch, on its own data (`fullstride data`)",
        tuple(
            ("fullstride", "compare", name, "--seconds", "60", "--to", f"build/compare-{name}", "--anew")
            for name in _RECIPES
        ),
        usual=False,
    ),
    "kernels": Suite("every kernel against torch, memory as it comes", (_KERNELS,)),
    "kernels_heap_kept": Suite("every kernel against torch, heap kept for both", ((*_KERNELS, "--keep-heap"),)),
    "mechanisms": Suite(
        "what each mechanism of rewriting/ earns",
        tuple(("benchmarks.mechanisms", "--model", name) for name in ("mlp", "llama", "bert", "gpt2")),
        usual=False,
    ),
    "llama_profile": Suite("where the time of a Llama's step goes", (("benchmarks.llama_profile",),)),
    "fastspeech2_profile": Suite(
        "where the time and memory of FastSpeech 2's step go", (("benchmarks.fastspeech2_profile",),)
    ),
    "clip_profile": Suite("where the time of CLIP's step goes", (("benchmarks.clip_profile",),)),
    "trainer": Suite("what the trainer costs over a bare loop", (("benchmarks.trainer_overhead",),)),
    "processes": Suite(
        "one process with all threads against two with half of them, recipe by recipe",
        tuple(("benchmarks.distributed.processes", "--recipe", name) for name in _RECIPES), usual=False,
    ),
    "averaging": Suite(
        "what a process loses by averaging gradients with another", (("benchmarks.distributed.averaging",),),
        usual=False,
    ),
    "sharding": Suite(
        "memory with the optimizer's states in one process each",
        (("benchmarks.distributed.sharding", "--rounds", "1"),), usual=False,
    ),
    "two_hosts": Suite(
        "two hosts on throttled links, and predictions", (("benchmarks.distributed.two_hosts",),), usual=False
    ),
    "local_updates": Suite(
        "islands against averages of gradients over a slow link", (("benchmarks.distributed.local_updates",),),
        usual=False,
    ),
    "llama_curves": Suite(
        "validation loss over time, side by side",
        (_CURVES, ("benchmarks.llama_curves", "llama-char", "--sides", "stock", "--every", "1000")),
        usual=False,
    ),
    "numerics": Suite(
        "errors of number formats against fp64",
        tuple(("benchmarks.numerics", name) for name in _NUMERICS),
        usual=False,
    ),
    "claims": Suite(
        "what earlier systems claimed without measuring", tuple(("benchmarks.claims", name) for name in _CLAIMS),
        usual=False,
    ),
    "thresholds": Suite("from how many elements on threads help", (("benchmarks.thresholds",),), usual=False),
}

# Everything that a training step of ours runs through; machine/ and backends/ choose who multiplies.
_ENGINE = (
    "csrc/attention", "csrc/gemm", "csrc/kernels", "csrc/optimizer", "csrc/simd", "csrc/threads.cc", "csrc/kernel.h",
    "src/fullstride/ops", "src/fullstride/nn", "src/fullstride/rewriting", "src/fullstride/optim",
    "src/fullstride/machine", "src/fullstride/backends", "src/fullstride/preparation.py", "src/fullstride/runtime.py",
)  # fmt: skip
_KERNEL_BASE = ("csrc/simd", "csrc/kernel.h", "csrc/threads.cc", "src/fullstride/ops/_tensors.py")
_OPTIMIZER = ("csrc/optimizer", "src/fullstride/ops/_optimizer.py", "src/fullstride/ops/_formats.py")
_PRODUCTS = ("csrc/gemm", "src/fullstride/ops/gemm.py", "src/fullstride/ops/products.py", "src/fullstride/backends")
_BIAS_ACT = ("csrc/kernels/bias_act.cc", "csrc/kernels/activations.h")
_NORMS = ("csrc/kernels/norm.h", "src/fullstride/ops/_norms.py")
# Beside the files named after the op.
_BESIDE = {
    "adam": (*_OPTIMIZER, "src/fullstride/optim/adamw.py", "src/fullstride/optim/_base.py"),
    "attention": ("csrc/attention", "csrc/gemm"),
    "bias_act": ("csrc/kernels/activations.h",),
    "contrastive_loss": (*_PRODUCTS, "csrc/kernels/cross_entropy.cc", "src/fullstride/ops/cross_entropy.py"),
    "conv1d": (
        *_PRODUCTS, *_BIAS_ACT, "src/fullstride/ops/_unfolding.py", "src/fullstride/ops/_winograd.py",
        "src/fullstride/ops/linear.py",
    ),
    "cross_entropy": ("csrc/kernels/softmax.h",),
    "gemm": _PRODUCTS,
    "glu": ("csrc/kernels/activations.h",),
    "grads": _OPTIMIZER,
    "lamb": _OPTIMIZER,
    "layer_norm": _NORMS,
    "linear": (*_PRODUCTS, *_BIAS_ACT),
    "linear_cross_entropy": (*_PRODUCTS, "csrc/kernels/cross_entropy.cc"),
    "patches": (*_PRODUCTS, "src/fullstride/ops/linear.py"),
    "rms_norm": _NORMS,
    "sgd": _OPTIMIZER,
    "softmax": ("csrc/kernels/softmax.h",),
}
_OF_SUITE = {
    "machine": ("csrc/kernels/stream.cc", "src/fullstride/machine/streams.py", "src/fullstride/backends"),
    "claims": (*_ENGINE, "src/fullstride/train", "src/fullstride/recipes/mlp.py"),
    "steps": _ENGINE,
    "recipes": (*_ENGINE, "src/fullstride/models", "src/fullstride/recipes"),
    "mechanisms": _ENGINE,
    "llama_profile": (*_ENGINE, "src/fullstride/models/llama.py"),
    "fastspeech2_profile": (*_ENGINE, "src/fullstride/models/fastspeech2.py"),
    "clip_profile": (*_ENGINE, "src/fullstride/models/clip.py"),
    "llama_curves": (*_ENGINE, "src/fullstride/models/llama.py"),
    "trainer": (*_ENGINE, "src/fullstride/train", "src/fullstride/data"),
    "processes": (*_ENGINE, "src/fullstride/distributed"),
    "averaging": (*_ENGINE, "src/fullstride/distributed"),
    "sharding": (*_ENGINE, "src/fullstride/distributed"),
    "two_hosts": (*_ENGINE, "src/fullstride/distributed"),
    "local_updates": (*_ENGINE, "src/fullstride/distributed"),
    # Formats are what these measure: faster code for the same formats changes nothing.
    "numerics": ("src/fullstride/ops/_formats.py", "src/fullstride/ops/_random.py", "csrc/simd/formats.h"),
    "thresholds": ("csrc/kernels", "csrc/optimizer", "csrc/simd", "csrc/threads.cc"),
}


def own_sources(op: str) -> tuple[str, ...]:
    """Files without which there is no such op."""
    folders = ("attention", "gemm", "kernels", "optimizer")
    return (*(f"csrc/{folder}/{op}.cc" for folder in folders), f"src/fullstride/ops/{op}.py")


def gone(op: str, root: Path) -> bool:
    """Whether an op that was measured is no part of the tree any more."""
    return not any((root / path).exists() for path in own_sources(op))


def sources(suite: str, part: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """What in this part was measured -> paths that it depends on."""
    if suite.startswith("kernels"):
        ops = dict.fromkeys(row["op"] for row in part["results"])
        return {op: (*own_sources(op), *_BESIDE.get(op, ()), *_KERNEL_BASE) for op in ops}
    if suite == "steps":
        models = dict.fromkeys(name_of_step(row) for row in part["results"])
        return {model: _OF_SUITE["steps"] for model in models}
    return {part.get("name") or part.get("recipe") or suite: _OF_SUITE.get(suite, ("src/fullstride", "csrc"))}


def name_of_step(row: dict[str, Any]) -> str:
    """mlp; mlp accumulate 8; llama 4 x 256."""
    accumulate = f"accumulate {row['accumulate']}" if row["accumulate"] != 1 else ""
    return " ".join(filter(None, (row["model"], row.get("batch", ""), accumulate)))
