"""`fullstride advise RECIPE`: the advice on a recipe as a study that can be stopped and continued (bench/study.py)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...bench import study
from ...recipes.config import expect

if TYPE_CHECKING:
    from ...bench.study import Say, Study
    from ...recipes.config import Config
    from .advice import Advice

SECONDS = 15.0  # of the short run


def run(
    config: "Config",
    seconds: float = SECONDS,
    check: bool = True,
    carbon: float | None = None,
    to: Path | None = None,
    anew: bool = False,
    say: "Say" = study.say_now,
) -> dict[str, Any]:
    """Says and returns the advice; leaves it in a folder as study.json, report.html and picture.png."""
    expect(0 < seconds < float("inf"), "seconds", "a time above 0", seconds)
    folder = study.folder_of("advise", config.recipe, to)
    study.check(folder)  # loads no torch, which bad input need not wait for

    from ...bench import conditions
    from ...recipes.strict import as_mapping
    from . import advice, page
    from . import check as short_run

    short_run.expect_carbon(carbon)
    facts = conditions.conditions() | {"heap": "kept by Fullstride"}
    wish = {"config": as_mapping(config), "seconds": seconds, "check": check, "carbon": carbon}
    with study.opened(folder, f"advise {config.recipe}", wish, facts, anew, say) as kept:
        say("counting what a step computes, then measuring how fast this machine is at that")
        made = (lambda: short_run.of_recipe(config, seconds)) if check else None
        found = advice.advise(config, made, carbon=carbon, kept=kept)
        kept.finish(found.content)
        say(f"\n{found}")
        _report(kept, found, page)
    return found.content


def _report(kept: "Study", found: "Advice", page: Any) -> None:
    title, lead = page.title(found.content), page.lead(found.content)
    written = kept.write_report(title, lead, page.sections(found.content), page.picture(found.content))
    kept.say("\n" + "\n".join(str(path) for path in [kept.folder / study.FILE, *written]))
