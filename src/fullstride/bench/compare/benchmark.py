"""`fullstride compare RECIPE`: the steps of a recipe by Fullstride against the same recipe in plain PyTorch.

Each side is a process of its own, and the one of stock PyTorch knows nothing of this package: it loads the recipe's
model from its plain file (models/), uses torch.optim, clip_grad_norm_ and eager fp32, and has none of our allocator
settings. What torch lacks it has in plain torch: LAMB and Lookahead from plain_optimizers.py, freezing from
plain_freezing.py. Both start from the same weights and see the same micro-batches in the same order at the same
learning rates. Ours is the same script after prepare(). The sides take turns until the time is spent (measuring.py),
and what they came to (outcome.py) is shown (table.py) and stays in a study.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import study as studies
from ..study import Say, Study
from . import measuring, outcome, table

if TYPE_CHECKING:
    from ...recipes.config import Config


def run(
    config: "Config",
    seconds: float = 60.0,
    best: bool = False,
    json: Path | None = None,
    to: Path | None = None,
    anew: bool = False,
    say: Say = studies.say_now,
) -> dict[str, Any]:
    """Measures `seconds` of steps, those of all sides together, start-up not counted; says and returns the outcome.

    best: against stock PyTorch at its best as well, whose settings are found by trial; torch.compile takes minutes.
    json: a file for what is returned, compare.json of a run folder say, where the report looks for it.
    to: the folder of the study; what is finished there is shown and not measured again, unless `anew`.
    """
    check(config, seconds)
    if json is not None:
        table.check_writable(json)
    folder = studies.folder_of("compare", config.recipe, to)
    studies.check(folder)

    from ...recipes.strict import as_mapping
    from .. import conditions  # loads torch, which bad input need not wait for

    facts = conditions.conditions() | {"heap": "kept by Fullstride, as it comes for stock PyTorch"}
    wish = {"config": as_mapping(config), "seconds": seconds, "best": best}
    with studies.opened(folder, f"compare {config.recipe}", wish, facts, anew, say) as study:
        say(f"{conditions.as_text(study.conditions)}\n\n{table.legend(seconds)}")
        if study.outcome is not None:
            say(f"\nmeasured before, as {folder} has it; --anew measures again")
        else:
            measuring.measure(study, config, seconds, best)
        content = _finish(study, config, best)
    if json is not None:
        table.write(json, content)
    return content


def check(config: "Config", seconds: float) -> None:
    """ValueError for what cannot be compared."""
    if not 0 < seconds < math.inf:
        raise ValueError(f"compare: expected a time above 0 seconds, got {seconds:g}")


def _finish(study: Study, config: "Config", best: bool) -> dict[str, Any]:
    """Says the outcome and, if it is new, writes it."""
    result = outcome.result_of(measuring.case_of(config), study.parts, best, measuring.failed_in(study.parts))
    steps = [outcome.steps_of(study.parts, side.name) for side in result.sides]
    turns, continued = outcome.turns_of(study.parts), outcome.numbered(study.parts, "continued")
    content = table.as_json(study.conditions, config, result, turns, steps, continued)
    study.say("\n" + "\n".join(table.lines(content, result)))
    if study.outcome is None:
        from ...report import comparison

        lead = comparison.sentences(content)
        title = f"{config.recipe}: Fullstride against stock PyTorch"
        paths = study.write_report(title, lead, [comparison.of_study(content)], comparison.picture(content))
        study.finish(content)
        study.say("\n" + "\n".join(map(str, paths)))
    return content
