"""ZeRO-1: states of the optimizer in one process each, and the bits of a run whose processes have them all."""

import pytest
import torch

from fullstride.distributed.sharding import Sharded
from fullstride.distributed.world import World
from fullstride.optim import AdamW
from fullstride.train.hooks import Hook
from fullstride.train.trainer import Trainer

from ..train.runs import assert_same_tensors, final, losses
from . import training
from .processes import together

STEPS = 8
COMMON = {"steps": STEPS, "evaluation": {"every": STEPS}, "checkpoints": {"every": STEPS}, "clip": 0.05}
OPTIMIZERS = {
    "adamw": {},
    "adamw, bf16": {"precision": "bf16", "optimizer": {"name": "adamw", "state_precision": "bf16"}},
    "adamw, 8bit": {"optimizer": {"name": "adamw", "state_precision": "8bit"}},
    "lamb": {"optimizer": {"name": "lamb"}},
    "adamw, lookahead": {"optimizer": {"name": "adamw", "lookahead": True, "lookahead_k": 3}},
}


class StatesCounted(Hook):
    """Bytes of the optimizer's states in this process, after the last step."""

    def on_end(self, trainer):
        optimizer = trainer.optimizer
        whole = trainer.model.parameters()
        states = optimizer.state
        self.bytes = sum(size_of(state) for state in states.values())
        self.largest = max(size_of(states.get(p, {})) for p in whole)
        self.norm = optimizer.last_grad_norm


def size_of(state):
    return sum(x.numel() * x.element_size() for x in state.values() if isinstance(x, torch.Tensor))


def fit(world: World, config, run):
    counted = StatesCounted()
    trainer = Trainer(config, run, [counted])
    trainer.quiet = True
    trainer.fit()
    return counted.bytes, counted.largest, counted.norm


def config_of(name, sharded):
    """Sent in fp32: auto may come to bf16 in one run of two."""
    return training.mlp(**COMMON, **OPTIMIZERS[name], distributed={"shard_optimizer": sharded, "gradients": "fp32"})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """runs(optimizer, processes, sharded): the folder, and what each process counted."""
    made = {}

    def run(name, num, sharded):
        key = (name, num, sharded)
        if key not in made:
            folder = tmp_path_factory.mktemp("run") / "run"
            made[key] = folder, together(num, fit, config_of(name, sharded), folder)
        return made[key]

    return run


@pytest.mark.parametrize(("name", "num"), [*((name, 2) for name in OPTIMIZERS), ("adamw", 4), ("lamb", 4)])
def test_shards_train_to_the_bits_of_whole_states(name, num, runs):
    whole, sharded = (runs(name, num, wish)[0] for wish in (False, True))
    assert_same_tensors(final(whole)[0], final(sharded)[0])
    assert losses(whole) == losses(sharded)


@pytest.mark.parametrize(("name", "num"), [("adamw", 2), ("adamw", 4), ("adamw, bf16", 2), ("adamw, 8bit", 2)])
def test_each_process_has_states_of_its_own_parameters_alone(name, num, runs):
    whole, sharded = (runs(name, num, wish)[1] for wish in (False, True))
    sizes, largest = [size for size, _, _ in sharded], max(size for _, size, _ in whole)
    in_all = whole[0][0]
    assert sum(sizes) == in_all > 0
    assert max(sizes) <= in_all / num + largest


@pytest.mark.parametrize("num", [2, 4])
def test_gradients_are_clipped_by_the_norm_of_all(num, runs):
    """All of the weights' would be another one in each process. COMMON clips in every step."""
    whole, sharded = (runs("adamw", num, wish) for wish in (False, True))
    norms = {norm for _, _, norm in sharded[1]}
    assert len(norms) == 1
    assert norms.pop() == pytest.approx(whole[1][0][2], rel=1e-6)
    assert all(row["grad_norm"] > COMMON["clip"] for row in training.rows(whole[0]).values())


def too_few(world: World):
    with pytest.raises(ValueError, match="shard_optimizer") as caught:
        Sharded(torch.nn.Linear(3, 2), AdamW, world)
    return str(caught.value)


def test_fewer_parameters_than_processes_are_refused_in_a_line():
    line = "distributed.shard_optimizer: expected as many parameters as processes, got 2 for 3 processes"
    assert together(3, too_few) == [line] * 3


def test_shards_of_layers_that_freeze_are_refused():
    with pytest.raises(ValueError, match=r"freeze\.enabled: expected no shard_optimizer with it"):
        training.mlp(distributed={"shard_optimizer": True}, freeze={"enabled": True})


def test_shards_of_islands_are_refused():
    with pytest.raises(ValueError, match=r"distributed\.shard_optimizer: expected no local_steps with it"):
        training.mlp(distributed={"shard_optimizer": True, "local_steps": 2})
