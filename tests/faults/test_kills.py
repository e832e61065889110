"""SIGKILL at any moment of 100 processes that train and save: resuming always ends in the uninterrupted run.

A process sends a mark whenever something is done: it has started, a step, an evaluation, a checkpoint. An
uninterrupted run gives the times between marks; a moment drawn from its length is then so many marks and a part of the
time to the next one. So the kills spread over all a run does, also on a machine whose speed changes meanwhile.
"""

import itertools
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing import Pipe

from fullstride.run_folder.folder import RunFolder
from fullstride.train.hooks import Hook

from ..patience import PATIENCE
from ..train import children
from ..train.runs import assert_same_run, evaluations, small
from .processes import kill_at_line

NUM_KILLS, MOST_KILLS = 100, 300
FEWEST = 2  # in each phase; of the rarest there are about 10 in the first hundred, on a busy machine fewer
PHASES = ("starting", "training", "evaluating", "saving", "before the first checkpoint")
NEVER = (1 << 60, 0.0)  # marks, seconds
EVERY = 3  # steps from one evaluation to the next
# A checkpoint after every step, weights that take a while to write, evaluations that are not all better than the last.
CONFIGS = [
    small(
        **({"epochs": 3.84} if background else {"steps": 12}),  # which is as long
        model={"hidden": [256, 256]},
        optimizer={"lr": 0.05},
        evaluation={"every": EVERY},
        checkpoints={"every": 1, "background": background},
    )
    for background in (False, True)
]


class Marks(Hook):
    """Tells through a pipe what was done."""

    def __init__(self, pipe):
        self.pipe = pipe

    def on_start(self, trainer):
        self.pipe.send("start")

    def on_step(self, trainer, loss):
        self.pipe.send(f"step {trainer.state.step}")

    def on_evaluate(self, trainer, row):
        self.pipe.send("evaluation")

    def on_checkpoint(self, trainer, folder):
        self.pipe.send("checkpoint")

    def on_end(self, trainer):
        self.pipe.send("end")


def train(run, config, pipe):
    """Goes on with the run if there is one."""
    from fullstride.train.trainer import Trainer

    pipe.send("process")
    hooks = [Marks(pipe)]
    trainer = Trainer.resume(run, hooks) if (run / "config.yaml").exists() else Trainer(config, run, hooks)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what it says is in the run's log
    trainer.fit()


class Training:
    """A process that trains, and its marks."""

    def __init__(self, run, config):
        self.pipe, theirs = Pipe()
        self.process = children.start(train, run, config, theirs)
        theirs.close()
        self.marks: list[str] = []

    def next_mark(self, seconds=PATIENCE):
        """Whether one came in this time; at its end the process gives none."""
        if not self.pipe.poll(seconds):
            return False
        try:
            self.marks.append(self.pipe.recv())
        except EOFError:
            return False
        return True

    def close(self):
        self.process.kill()
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        self.pipe.close()
        return code


@dataclass
class Timeline:
    """The seconds between the marks of an uninterrupted run, from its first mark to its end."""

    gaps: list[float]

    def moment(self, chance):
        """(marks, seconds after the last of them): any time of the run, or at once after any mark.

        The latter come as often on any machine; how long an evaluation takes, say, beside a start, is the machine's.
        """
        if chance.random() < 0.5:
            return chance.randint(1, len(self.gaps)), 0.0
        left = chance.uniform(0, sum(self.gaps))
        for number, gap in enumerate(self.gaps, 1):
            if left < gap:
                return number, left
            left -= gap
        return len(self.gaps), self.gaps[-1]


def measure(run):
    """An uninterrupted run and its timeline."""
    training = Training(run, CONFIGS[0])
    times = []
    while training.next_mark():
        times.append(time.perf_counter())
    training.process.join()
    times.append(time.perf_counter())
    assert f"step {CONFIGS[0].steps}" in training.marks
    assert training.close() == 0
    return Timeline([after - before for before, after in itertools.pairwise(times)])


def partial(run):
    """What a saving has not finished, by time and name."""
    folder = run / "checkpoints"
    paths = [path for path in folder.iterdir() if path.name[0] == "."] if folder.exists() else []
    return {(path.name, path.stat().st_mtime_ns) for path in paths}


def kill(run, config, moment):
    """Trains until that moment: whether the process was killed, and in what."""
    num_marks, seconds = moment
    before = partial(run)
    training = Training(run, config)
    while len(training.marks) < num_marks and training.next_mark():
        pass
    training.process.join(seconds)
    code = training.close()
    assert code in (0, -signal.SIGKILL), (run / "log.txt").read_text()
    return code != 0, phases(run, training.marks, before)


def phases(run, marks, partial_before):
    """What was going on, by the last mark and by what is in the folder."""
    last, *step = marks[-1].split()
    yield "evaluating" if step and int(step[0]) % EVERY == 0 else {"process": "starting"}.get(last, "training")
    if partial(run) - partial_before:
        yield "saving"
    if not list((run / "checkpoints").glob("step-*")):
        yield "before the first checkpoint"


def is_enough(seen):
    fewest = min(seen[phase] for phase in PHASES)
    return seen["kills"] >= (NUM_KILLS if fewest >= FEWEST else MOST_KILLS)


def test_a_hundred_kills_change_nothing(memory_folder):
    chance = random.Random(0)
    measure(memory_folder / "kills-first")  # what is measured once for a machine is kept from here on
    whole = memory_folder / "kills-whole"
    timeline = measure(whole)
    assert {row["best"] for row in evaluations(whole)} == {True, False}
    seen: Counter[str] = Counter()
    for number in itertools.count():
        run, config = memory_folder / f"kills-{number}", CONFIGS[number % 2]
        while True:
            killed, found = kill(run, config, NEVER if is_enough(seen) else timeline.moment(chance))
            if not killed:
                break
            seen.update(["kills", *found])
        assert_same_run(run, whole)
        log = (run / "log.txt").read_text()
        assert "passed over" not in log  # a kill leaves no damaged checkpoint, only an unfinished one
        if is_enough(seen):
            break
        assert number < MOST_KILLS, f"the kills miss: {seen}"
    assert min(seen[phase] for phase in PHASES) >= FEWEST, seen


def create_until_line(folder, line):
    kill_at_line(line)
    RunFolder.create(folder, "recipe: mlp\n")


def create_and_kill(folder):
    """Kills the making of a run folder at each of its lines in turn; how many there are."""
    for line in range(10_000):
        path = folder / str(line)
        if not (child := os.fork()):
            create_until_line(path, line)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if (path / "config.yaml").exists():
            RunFolder.open(path).close()
        else:  # the same command again
            RunFolder.create(path, "recipe: mlp\n").close()
        if status == 0:
            return line
        assert os.WTERMSIG(status) == signal.SIGKILL
    raise AssertionError("it never ended")


def test_a_kill_while_the_run_folder_is_made_leaves_a_run_or_a_folder_for_one(memory_folder):
    assert children.run(create_and_kill, memory_folder / "made") > 20
