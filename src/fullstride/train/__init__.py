"""Training runs. Start reading at trainer.py.

    trainer.py          the loop: fit(), then _train_step()
    assembly.py         optimizer, schedule and freezer that a config describes
    state.py            all that changes while a run goes on
    checkpoints/        states to go on from, written so that they survive
    evaluation.py       scores on held-out data
    progress/           what a run tells while it goes on: rows, bar, log
    signals.py, errors.py, hooks.py     how a run is stopped, why it ended, code of one's own in it
    environment.py      what the bits of a run depend on
    dry_run.py, export.py               before a run, and after it
"""
