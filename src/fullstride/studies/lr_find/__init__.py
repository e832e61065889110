"""`fullstride lr-find`: a learning rate for a recipe, found by training with rates that grow until it fails.

    run.py        the command: read it first
    span.py       which rates are tried
    sweep.py      one range test: a step at each rate
    rule.py       from its losses to a rate, and why that one
    trial.py      the recipe trained with the rate that was found, and with its own
    outcome.py, page.py      what is said, written and drawn
"""
