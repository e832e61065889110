"""`fullstride tune`: the settings that make a recipe fast on this machine and, if asked, learn more in the same time.

    run.py        the command: read it first
    speed.py      one setting after the other, by successive halving; then default against best, in turns
    search.py     learning rate and the like on validation loss, by optuna
    settings.py, process_counts.py, spaces.py   what can be tried
    plan.py       what there is time for
    child.py      the processes, none of which may hold too much (resident.py): estimates.py counts, trial.py trains
    ranks.py, turns.py       a trial from inside: the processes it may have, and what they do
    answering.py  what a program of this folder says when it fails
    outcome.py, pages.py     what is said, written and drawn

Every trial is the real trainer with its data, in a process of its own.
"""
