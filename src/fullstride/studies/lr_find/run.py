"""`fullstride lr-find RECIPE`: a learning rate from range tests, and whether the recipe trains no worse with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...bench import study as studies
from .span import REPEATS, Span, as_text

if TYPE_CHECKING:
    from ...recipes.config import Config
    from .trial import Wish


def run(
    config: "Config", span: Span | None = None, repeats: int = REPEATS, check: int | None = None, num_seeds: int = 1,
    to: Path | None = None, anew: bool = False, say: studies.Say = studies.say_now,
) -> dict[str, Any]:  # fmt: skip
    """Tests the range `repeats` times with other weights and another order of the data; says and returns the outcome.

    check: steps of a training with the rate that was found and with the recipe's own, for num_seeds seeds; 0: all of
    the recipe's; None: no training. More repeats, or a check, may be asked for when the rest is done.
    """
    span = span or Span.around(config.optimizer.lr, None, None)
    if repeats < 1 or num_seeds < 1 or (check is not None and check < 0):
        raise ValueError(f"lr-find: expected 1 or more repeats and seeds, got {repeats} and {num_seeds}, check {check}")
    folder = studies.folder_of("lr-find", config.recipe, to)
    studies.check(folder)

    from ...bench import conditions  # these load torch, which bad input need not wait for
    from ...recipes.strict import as_mapping
    from . import trial

    config = config.located()
    wish = None if check is None else trial.Wish(check or None, num_seeds)
    trial.require(config, wish)
    asked = {"config": as_mapping(config), "lowest": span.lowest, "highest": span.highest, "steps": span.steps}
    facts = conditions.conditions()
    with studies.opened(folder, f"lr-find {config.recipe}", asked, facts, anew, say) as study:
        return _find(study, config, span, repeats, wish)


def _find(study: studies.Study, config: "Config", span: Span, repeats: int, wish: "Wish | None") -> dict[str, Any]:
    from . import outcome, page, trial

    tests = "one range test" if repeats == 1 else f"{repeats} range tests"
    study.say(f"{tests} of {span.steps} steps, from the rate {as_text(span.lowest)} to {as_text(span.highest)}")
    found = outcome.outcome(config, span, _sweeps(study, config, span, repeats))
    outcome.write_config(study.folder, config, found)
    if wish is not None and found["rate"] is not None:
        study.say(outcome.headline(found))
        trial.run(study, config, wish, found["rate"])
        found["check"] = outcome.check(config, wish, found["rate"], study.parts)
    study.finish(found)
    written = page.write(study, config, found)
    study.say("\n" + "\n".join(outcome.lines(found, config, study.folder, written)))
    return found


def _sweeps(study: studies.Study, config: "Config", span: Span, repeats: int) -> list[dict[str, Any]]:
    """The range tests, those that were not done before among them."""
    from . import outcome, sweep

    names = {f"range test, seed {seed}": seed for seed in range(config.seed, config.seed + repeats)}
    for name in study.left(list(names)):
        found = sweep.sweep(config.replace(seed=names[name]), span, study.say)
        study.record(name, found, said=_said(outcome.readings([found], span)))
    return [study.parts[name] for name in names]


def _said(found: dict[str, Any]) -> str:
    repeat = found["repeats"][0]
    told = repeat["why_not"] or f"suggests {as_text(repeat['suggestion'])}"
    end = "no divergence" if repeat["diverged"] is None else f"{repeat['why']} at {as_text(repeat['diverged'])}"
    skipped = f"; {repeat['skipped']} steps skipped" if repeat["skipped"] else ""
    return f"{told}; loss lowest at {as_text(repeat['lowest_at'])}, {end}{skipped}"
