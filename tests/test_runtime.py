"""What prepare() sets for the whole process, and that the last restore() puts it back."""

import copy
import logging
import multiprocessing
import os
import pickle
import threading

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.optim import optimizer as torch_optimizer

import fullstride
from fullstride import _native, runtime
from fullstride.machine import threads
from fullstride.ops import linear

from .language_model import batch, make, train

pytestmark = pytest.mark.usefixtures("quiet")


def state_of_torch():
    """All that prepare() touches outside of the model."""
    return {
        "threads": torch.get_num_threads(),
        "denormals": threads.flushes_denormals(),
        "checkpoint": torch.utils.checkpoint._checkpoint_without_reentrant_generator,
        "optimizer hooks": dict(torch_optimizer._global_optimizer_pre_hooks),
        "modes": torch._C._len_torch_function_stack(),
        "backends": {(dtype, s): linear.backend(dtype, s) for dtype in linear.KERNEL_DTYPES for s in linear.SHAPES},
        "excluded": dict(runtime.current().excluded),
        "overlap": linear.overlaps_weight_grads(),
        "isa": _native.isa(),
        "worker": [thread.name for thread in threading.enumerate() if "weight-gradients" in thread.name],
    }


def test_importing_everything_changes_nothing():
    code = (
        "import torch, torch.utils.checkpoint\n"
        "from torch.optim import optimizer\n"
        "before = torch.utils.checkpoint._checkpoint_without_reentrant_generator, torch.get_num_threads()\n"
        "import fullstride, fullstride.preparation, fullstride.rewriting.lazy_logits, fullstride.train.trainer\n"
        "assert before == (torch.utils.checkpoint._checkpoint_without_reentrant_generator, torch.get_num_threads())\n"
        "assert not optimizer._global_optimizer_pre_hooks and not optimizer._global_optimizer_post_hooks\n"
        "from fullstride.machine import threads\n"
        "assert not threads.flushes_denormals()\n"
    )
    child = multiprocessing.get_context("spawn").Process(target=exec, args=(code,))
    child.start()
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_after_the_last_restore_torch_is_as_it_was(precision, num_threads):
    num_threads(2)
    before = state_of_torch()
    model, optimizer = fullstride.prepare(*make(), precision=precision, threads=1, overlap_weight_grads=True)
    second, _ = fullstride.prepare(*make(), precision="fp32", threads=3)
    train(model, optimizer, range(2))
    during = state_of_torch()
    assert all(during[name] != before[name] for name in ("threads", "denormals", "checkpoint", "optimizer hooks"))
    fullstride.restore(model)
    assert state_of_torch() == during  # the second one still needs it
    fullstride.restore(second)
    assert state_of_torch() == before


def test_restore_says_what_became_of_the_process(monkeypatch, capsys, num_threads):
    num_threads(2)
    (model, _), (second, _) = fullstride.prepare(*make(), threads=1), fullstride.prepare(*make())
    monkeypatch.delenv("FULLSTRIDE_QUIET")
    monkeypatch.setattr(logging.getLogger("fullstride"), "propagate", False)
    fullstride.restore(model)
    assert capsys.readouterr().err == "fullstride: restored; the process stays as it is for 1 other prepared model(s)\n"
    fullstride.restore(second)
    said = capsys.readouterr().err
    assert said.startswith("fullstride: restored, and torch as before; 2 threads, denormals kept; the heap ")
    assert said.count("\n") == 1


def test_a_preparation_that_fails_leaves_the_process_alone(num_threads):
    num_threads(2)
    before = state_of_torch()
    model, _ = make()
    with pytest.raises(TypeError, match="Adagrad"):
        fullstride.prepare(model, torch.optim.Adagrad(model.parameters()), threads=1)
    assert state_of_torch() == before


def test_a_failure_does_not_disturb_a_model_that_is_prepared(num_threads):
    num_threads(2)
    model, optimizer = fullstride.prepare(*make(), threads=1)
    during = state_of_torch()
    with pytest.raises(ValueError, match="threads: expected a whole number"):
        fullstride.prepare(make()[0], precision="fp32", threads=0)
    assert state_of_torch() == during
    train(model, optimizer, range(1))


def test_a_model_that_died_does_not_hide_what_there_was(num_threads):
    num_threads(2)
    before = state_of_torch()
    fullstride.prepare(*make(), threads=1)  # and nobody keeps it
    model, _ = fullstride.prepare(*make(), threads=3)
    runtime.current().users.clear()  # as the garbage collector does, sooner or later
    fullstride.restore(model)
    assert state_of_torch() == before


def test_the_preparation_holds_the_runtime_and_shows_it(num_threads):
    num_threads(2)
    model, _ = fullstride.prepare(*make(), precision="fp32", threads=1)
    record = fullstride.explain(model)
    assert record.runtime is runtime.current()
    text = str(record)
    assert "products   fp32: few rows" in text
    assert "machine    threads 1: as asked for" in text
    assert "changed    threads: 2 threads, denormals kept" in text


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_holds_the_runtime_too(copied, num_threads):
    num_threads(2)
    before = state_of_torch()
    model, _ = fullstride.prepare(*make(), precision="bf16", threads=1)
    twin = copied(model)
    during = state_of_torch()
    fullstride.restore(model)
    assert state_of_torch() == during
    assert torch.equal(fullstride.restore(twin)(batch(0)), model(batch(0)))
    assert state_of_torch() == before


def test_two_models_of_different_precision_train_as_they_do_alone():
    alone = {p: train(*fullstride.prepare(*make(), precision=p), range(4)) for p in ("fp32", "bf16")}
    pairs = {p: fullstride.prepare(*make(), precision=p) for p in ("fp32", "bf16")}
    together: dict[str, list[float]] = {p: [] for p in pairs}
    for step in range(4):
        for p, (model, optimizer) in pairs.items():
            together[p] += train(model, optimizer, range(step, step + 1))
    assert together == alone


def test_threads_train_prepared_models_of_their_own():
    alone = [train(*fullstride.prepare(*make(), precision=p), range(4)) for p in ("fp32", "bf16")]
    results: dict[str, list[float]] = {}

    def work(precision):
        results[precision] = train(*pairs[precision], range(4))

    pairs = {p: fullstride.prepare(*make(), precision=p) for p in ("fp32", "bf16")}
    workers = [threading.Thread(target=work, args=(p,)) for p in pairs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for expected, precision in zip(alone, ("fp32", "bf16"), strict=True):
        assert results[precision] == pytest.approx(expected, rel=1e-5)  # another thread of torch's may cut work anew


def test_a_forked_child_goes_on_and_restores_for_itself(num_threads):
    num_threads(1)  # torch's own threads do not survive a fork
    model, optimizer = fullstride.prepare(*make(), precision="fp32")
    expected = train(*fullstride.prepare(*make(), precision="fp32"), range(2))
    child = os.fork()
    if child == 0:
        same = train(model, optimizer, range(2)) == expected
        fullstride.restore(model)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert runtime.current().users
    assert train(model, optimizer, range(2)) == expected


def _spawned(model, connection):
    before = state_of_torch()
    y = model(batch(0)).tolist()  # a tensor would be shared memory, which dies with this process
    restored = fullstride.restore(model)(batch(0)).tolist()
    connection.send((y, restored, {k: (before[k], v) for k, v in state_of_torch().items() if before[k] != v}))


def test_a_spawned_child_gets_a_model_that_runs_and_restores():
    model, _ = fullstride.prepare(*make(), precision="bf16")
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_spawned, args=(model, there))
    child.start()
    y, restored, changed = here.recv()
    child.join()
    assert changed == {}
    torch.testing.assert_close(torch.tensor(y), model(batch(0)).detach(), rtol=2e-2, atol=2e-2)  # by torch there
    assert restored == fullstride.restore(model)(batch(0)).tolist()


class Nest(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.head = inner, nn.Linear(13, 13)

    def forward(self, tokens):
        return self.head(self.inner(tokens))


def test_a_nested_model_is_prepared_as_part_of_its_parent_only():
    model = Nest(make()[0])
    fullstride.prepare(model)
    with pytest.raises(ValueError, match="not prepared"):
        fullstride.restore(model.inner)
    fullstride.restore(model)
    assert not runtime.current().changes
