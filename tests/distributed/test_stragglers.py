"""A process that the others wait for is named while the run goes on."""

import os

import torch

from fullstride.distributed.world import World
from fullstride.run_folder import stragglers
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
    stragglers.SPELL = 1e-3  # every row is one
    trainer = Trainer(training.mlp(steps=20), run, [Works()] if world.rank == slow else [])
    trainer.quiet = True
    trainer.fit()


def test_a_process_that_computes_more_is_named(tmp_path):
    run = tmp_path / "run"
    together(2, fit, run, 1)
    expected = f"rank 1 on {os.uname().nodename} is slower than the others, which wait for it "
    assert expected in (run / "log.txt").read_text()
