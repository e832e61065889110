"""Candidates that misbehave, in the form of backends/trials/candidates.py. Only a child process imports it."""

import os
import signal
import time
from functools import partial


def die(number=signal.SIGILL):
    os.kill(os.getpid(), number)
    time.sleep(60)  # a signal that is not deadly would be waited for in vain


def hang():
    while True:
        time.sleep(60)


def refuse():
    raise RuntimeError("no bf16 on this CPU\nsecond line")


def results(shape, factor=1.0):
    from fullstride.backends.trials import candidates

    x, weight, dy = (tensor.detach() for tensor in candidates.layer("fp32", shape))
    return factor * (x @ weight.t()), dy @ weight, dy.t() @ x


def racer(shape, factor=1.0):
    return lambda: results(shape, factor)


def dies_in_large(shape):
    return partial(die, signal.SIGSEGV)


def hangs_in_large(shape):
    return hang


def fine():
    return 0.0, 0.1


def noisy():
    os.write(1, b"onednn_verbose,v1,info,cpu\n{}\n")
    return 0.0, 0.1


CHECKS = {
    "torch's fp32 product": fine,
    "oneDNN's fp32 product": fine,
    "our fp32 product": fine,
    "torch's bf16 product": die,
    "oneDNN's bf16 product": fine,
    "our bf16 product": partial(die, signal.SIGKILL),
    "torch's bf16 convolution": hang,
    "torch's bf16 attention": lambda: (0.5, 0.1),
    "torch's bf16 LSTM": lambda: (float("nan"), 0.1),
    "torch's bf16 matmul": refuse,
    "torch's int8 product": noisy,
    "exits": lambda: os._exit(3),
}
RACERS = {
    ("fp32", "torch"): racer,
    ("fp32", "onednn"): partial(racer, factor=1.5),
    ("fp32", "native"): dies_in_large,
    ("bf16", "onednn"): hangs_in_large,
}
