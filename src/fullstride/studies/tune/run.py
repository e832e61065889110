"""`fullstride tune RECIPE`: what to set so that this recipe is fast on this machine, and why."""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...bench import study
from ...bench.study import Say, Study, as_time, say_now
from ...machine import memory
from ...recipes.config import Config
from ...recipes.strict import as_mapping
from . import outcome, pages, plan, resident, settings
from .child import Children
from .plan import Session
from .search import Search, require_optuna
from .speed import Speed


def run(
    config: Config, minutes: float = 10.0, search: Sequence[str] = (), folder: Path | None = None, anew: bool = False,
    limit: int | None = None, dimensions: Sequence[str] = settings.DIMENSIONS, say: Say = say_now,
) -> dict[str, Any]:  # fmt: skip
    """Tunes for so many minutes, those of earlier calls that were stopped among them; says and returns the outcome.

    search: of spaces.NAMES. limit: bytes that the trials may hold, None: most of what is available.
    """
    if not 0 < minutes < math.inf:
        raise ValueError(f"tune: expected minutes above 0, got {minutes:g}")
    if search:
        require_optuna()
    folder = study.folder_of("tune", config.recipe, folder)
    study.check(folder)

    from ...bench import conditions  # loads torch, which bad input need not wait for

    wish = {"config": as_mapping(config), "minutes": minutes, "search": list(search), "limit": limit}
    wish |= {"dimensions": list(dimensions)}
    command = f"tune {config.recipe}"
    with (
        study.opened(folder, command, wish, conditions.conditions(), anew, say) as opened,
        tempfile.TemporaryDirectory(prefix="fullstride-tune-") as runs,
        Children(resident.limit() if limit is None else limit) as children,
    ):
        _say_limits(say, minutes, children.limit)
        return _tune(opened, config, 60 * minutes, search, dimensions, children, Path(runs))


def _say_limits(say: Say, minutes: float, limit: int | None) -> None:
    held = "nobody tells here how much memory is free" if limit is None else f"trials may hold {memory.as_size(limit)}"
    how = "" if limit is None or resident.is_told() else ", by estimate: nobody tells here what they do hold"
    say(f"{as_time(60 * minutes)} in all; {held}{how}")


def _tune(
    opened: Study, config: Config, seconds: float, search: Sequence[str], dimensions: Sequence[str],
    children: Children, runs: Path,
) -> dict[str, Any]:  # fmt: skip
    session = Session(opened, seconds)
    speed = Speed(session, config, children, runs, (plan.SPEED if search else 1) * seconds, dimensions).run()
    tuned, searched = speed.taken.applied(config), None
    if search:
        children.close()  # those of the speed are not asked again
        searcher = Search(session, tuned, search, speed, children, runs)
        searched = searcher.run()
        tuned = searcher.config_of(searched.best) if searched.is_better else tuned
    content = outcome.as_json(opened, speed, searched, config, tuned, session.spent)
    path = outcome.write_config(opened.folder, tuned, content)
    opened.finish(content)
    written = pages.write(opened, content)
    opened.say("\n" + "\n".join(outcome.lines(content, path, written)))
    return content
