"""What prepare() sets for the whole process, and that the last restore() puts it back."""

import copy
import logging
import multiprocessing
import os
import pickle
import signal
import threading

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.optim import optimizer as torch_optimizer

import fullstride
from fullstride import _native, runtime
from fullstride.machine import threads
from fullstride.ops import _overlap, linear, products

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
        "backends": {(dtype, s): products.backend(dtype, s) for dtype in linear.KERNEL_DTYPES for s in products.SHAPES},
        "excluded": dict(runtime.current().excluded),
        "overlap": _overlap.overlaps_weight_grads(),
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
    assert said.startswith("fullstride: restored, and torch as before; threads: 2 threads, denormals kept; kernels: ")
    assert "torch.utils.checkpoint: its own; " in said
    assert said.endswith(("; the heap stays kept\n", "; the heap is as it comes\n"))
    assert said.count("\n") == 1


def test_a_preparation_that_fails_leaves_the_process_alone(num_threads):
    num_threads(2)
    before = state_of_torch()
    model, _ = make()
    with pytest.raises(TypeError, match="Adagrad"):
        fullstride.prepare(model, torch.optim.Adagrad(model.parameters()), threads=1)
    assert state_of_torch() == before


def bad_threads(model):
    fullstride.prepare(model, precision="fp32", threads=0)


def bad_optimizer(model):
    fullstride.prepare(model, torch.optim.Adagrad(model.parameters()), threads=3, without=["tied_gradients"])


def bad_precision(model):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FULLSTRIDE_PRECISION", "int4")
        fullstride.prepare(model, threads=3)


@pytest.mark.parametrize("fail", [bad_threads, bad_optimizer, bad_precision])
def test_a_failure_does_not_disturb_a_model_that_is_prepared(fail, num_threads):
    num_threads(2)
    model, optimizer = fullstride.prepare(*make(), threads=1)
    during, ties = state_of_torch(), runtime.current().ties_gradients
    with pytest.raises((TypeError, ValueError)):
        fail(make()[0])
    assert state_of_torch() == during
    assert runtime.current().ties_gradients == ties
    train(model, optimizer, range(1))


def test_a_model_whose_preparation_failed_late_is_as_it_was(monkeypatch, num_threads):
    def fail(*args):
        raise ArithmeticError("on purpose")

    num_threads(2)
    before = state_of_torch()
    model, optimizer = make()
    kinds, y = [type(module) for module in model.modules()], model(batch(0))
    monkeypatch.setattr("fullstride.rewriting.prepared_forward.wrap_forwards", fail)
    with pytest.raises(ArithmeticError):
        fullstride.prepare(model, optimizer, precision="bf16")
    assert [type(module) for module in model.modules()] == kinds
    assert torch.equal(model(batch(0)), y)
    assert state_of_torch() == before


def test_a_model_that_died_does_not_hide_what_there_was(num_threads):
    num_threads(2)
    before = state_of_torch()
    fullstride.prepare(*make(), threads=1)  # and nobody keeps it
    model, _ = fullstride.prepare(*make(), threads=3)
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
    assert "changed    threads, before: 2 threads, denormals kept" in text
    assert "changed    torch.utils.checkpoint, before: its own" in text
    assert "changed    hook before optimizer steps, before: none" in text
    assert str(pickle.loads(pickle.dumps(record))).startswith(text.split("changed")[0])


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


def test_threads_may_prepare_and_restore_at_the_same_time(num_threads):
    num_threads(2)
    before = state_of_torch()

    def work():
        for _ in range(3):
            model, optimizer = fullstride.prepare(*make(), precision="fp32", threads=2)
            train(model, optimizer, range(1))
            fullstride.restore(model)
            done.append(1)

    done: list[int] = []
    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(done) == 9
    assert not runtime.current().changes
    after = state_of_torch()
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"threads", "denormals"}  # of which each thread has its own


def test_restore_in_a_forked_child_of_a_process_with_threads_does_not_wait_for_them(num_threads):
    num_threads(2)
    model, _ = fullstride.prepare(*make(), precision="fp32")
    torch.ones(1 << 20).mul_(2)  # the threads run
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        fullstride.restore(model)
        os._exit(0 if torch.get_num_threads() == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_optimizers_want_outlives_a_restore():
    model = nn.Linear(4, 4)
    optimizer = fullstride.optim.AdamW(model.parameters(), clip=1.0)
    for _ in range(2):
        fullstride.prepare(model, optimizer, precision="fp32")
        assert runtime.current().sums_squares
        fullstride.restore(model)
        assert runtime.current().sums_squares


def test_backends_set_by_hand_come_back(num_threads):
    products.set_backend(torch.float32, "native")
    model, _ = fullstride.prepare(*make())
    fullstride.restore(model)
    assert products.backend(torch.float32) == "native"


def test_a_patch_that_somebody_made_after_ours_stays(monkeypatch):
    model, _ = fullstride.prepare(*make())
    monkeypatch.setattr(torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", len)
    fullstride.restore(model)
    assert torch.utils.checkpoint._checkpoint_without_reentrant_generator is len


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
    # By torch there, and with whole weights, as every copy has.
    torch.testing.assert_close(torch.tensor(y), model(batch(0)).detach(), rtol=2e-2, atol=0.1)
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
