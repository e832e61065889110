"""A process that the others wait for is named while the run goes on."""

import os

import torch

from fullstride.distributed.world import World
from fullstride.train.hooks import Hook
from fullstride.train.trainer import Trainer

from . import training
from .processes import together


class Works(Hook):
    """Some 20 times as much as a step, after each one."""

    def on_step(self, trainer, loss):
        x = torch.ones(512, 512)
        for _ in range(20):
            x = x @ x / 512


def fit(world: World, run, slow):
    trainer = Trainer(training.mlp(steps=20), run, [Works()] if world.rank == slow else [])
    trainer.quiet = True
    trainer.fit()


def test_a_process_that_computes_more_is_named(tmp_path):
    run = tmp_path / "run"
    together(2, fit, run, 1)
    said = [line for line in (run / "log.txt").read_text().splitlines() if "is slower than the others" in line]
    assert len(said) == 1, said
    assert f"rank 1 on {os.uname().nodename} is slower than the others, which wait for it " in said[0]
