"""What came out of `tune`: as JSON, as lines, and as a config that `fullstride train` takes."""

import json
from pathlib import Path
from typing import Any

from ... import durable
from ...bench.measure import spread_of
from ...bench.study import Study, as_time
from ...recipes import config_files
from ...recipes.config import Config
from ...recipes.strict import as_mapping
from ...report.words import significant
from ...run_folder.flat import flat
from . import process_counts, search, settings, speed

CONFIG = "tuned.yaml"
SAME = (
    "What is set for speed leaves the training the same, to rounding: how a batch is cut into micro-batches, threads,"
    " workers, processes and overlap change no formula. Dropout draws other numbers for other micro-batches."
)
SHORT = (
    "The trials were {seconds} of training long. A run that is much longer may want another learning rate, most often"
    " a lower one."
)


def as_json(
    study: Study, found: speed.Found, searched: search.Found | None, config: Config, tuned: Config, spent: float
) -> dict[str, Any]:
    own = study.parts["default"]["units_per_second"]
    rates = {who: spread_of(part[who] for part in found.rounds) if found.rounds else own for who in ("default", "best")}
    before, after = (flat(as_mapping(each)) for each in (config, tuned))
    before["processes"], after["processes"] = found.default.processes, found.taken.processes
    return {
        "recipe": config.recipe, "unit": found.unit, "took": spent,
        "default": _side(found, found.default, rates["default"]),
        "best": _side(found, found.best, rates["best"]),
        "tried": len({json.dumps(part["settings"]) for part in study.parts.values() if "rung" in part} - {_own(found)}),
        "ratio": found.ratio(), "rounds": len(found.rounds), "taken": "best" if found.is_faster else "default",
        "changes": {name: [before[name], after[name]] for name in after if before[name] != after[name]},
        "left_out": found.left_out, "inter_op_started": found.inter_op_started,
        "search": None if searched is None else _search(searched), "config": CONFIG,
        "processes": found.taken.processes,
    }  # fmt: skip


def _own(found: speed.Found) -> str:
    return json.dumps(found.default.fields())


def _side(found: speed.Found, side: settings.Settings, rate: dict[str, float]) -> dict[str, Any]:
    return {
        "settings": side.fields(), "words": settings.words(side, found.ground), "units_per_second": rate,
        "precision": found.ground.precision_of(side),
    }  # fmt: skip


def _search(found: search.Found) -> dict[str, Any]:
    trials = [{name: part[name] for name in ("values", "state", "why", "points", "steps")} for part in found.trials]
    return {
        "names": list(found.names), "seconds": found.seconds, "is_whole": found.is_whole, "trials": trials,
        "best": found.best,
        "finals": found.finals, "taken": "best" if found.is_better else "default", "stopped": found.stopped,
    }  # fmt: skip


def write_config(folder: Path, tuned: Config, content: dict[str, Any]) -> Path:
    path = folder / CONFIG
    comment = f"# fullstride tune {content['recipe']}: {gain(content)}\n"
    if content["processes"] > 1:  # which no field says
        comment += f"# {command(content, path)}\n"
    return durable.replace(path, (comment + config_files.to_yaml(tuned.located())).encode())


def command(content: dict[str, Any], config: Path) -> str:
    """That trains with what was taken."""
    return f"fullstride train --config {config}{process_counts.option(content['processes'])}"


def gain(content: dict[str, Any]) -> str:
    """One line on the speed."""
    ratio = content["ratio"]
    if not content["tried"]:
        return "the default stays: nothing else was tried"
    if ratio is None:
        return f"the default is already best: nothing else was more than {100 * (speed.GAIN - 1):.0f} % faster"
    spread = f"{ratio['median']:.2f}x [{ratio['lowest']:.2f}..{ratio['highest']:.2f}]"
    if content["taken"] == "default":
        return f"the default is already best: {spread} for the best other, which was not faster in every round"
    return f"{spread} of the default's speed"


def same(content: dict[str, Any]) -> str:
    """What the settings that were taken change of the training: a precision rounds otherwise."""
    own, now = (content[who]["precision"] for who in ("default", content["taken"]))
    if own == now:
        return SAME
    return f"{SAME} It is in {now} instead of {own}: other rounding; see docs/numerics.md."


def lines(content: dict[str, Any], config: Path, written: list[Path]) -> list[str]:
    """For people."""
    rounds = f", {content['rounds']} rounds in turns" * bool(content["rounds"])
    rows = [("default", _said(content, "default"))]
    rows += [("best", _said(content, "best"))] if content["ratio"] else []
    rows += [("speed", gain(content) + rounds)]
    rows += _search_rows(content["search"]) if content["search"] else []
    changes = [f"{name} {was} -> {now}" for name, (was, now) in content["changes"].items()]
    rows += [("changed", ", ".join(changes) or "nothing")]
    rows += [("" if i else "left out", text) for i, text in enumerate(left_out(content))]
    rows += [("inter-op", inter_op(content))]
    rows += [("time", as_time(content["took"]))]
    rows += [("" if i else "report", str(path)) for i, path in enumerate(written)]
    rows += [("next", command(content, config))]
    return [f"{name:<9} {text}" for name, text in rows] + ["", *([same(content)] if content["taken"] == "best" else [])]


def left_out(content: dict[str, Any]) -> list[str]:
    """A line a reason."""
    by_reason: dict[str, list[str]] = {}
    for what, why in content["left_out"].items():
        by_reason.setdefault(why, []).append(what)
    return [f"{', '.join(what)}: {why}" for why, what in by_reason.items()]


def inter_op(content: dict[str, Any]) -> str:
    if content["inter_op_started"]:
        return "torch's pool for operations beside each other was used; its size is not tuned"
    return "nothing to tune: no step has ever used torch's pool for operations beside each other"


def _said(content: dict[str, Any], who: str) -> str:
    return f"{speed.said(content[who], content['unit'])}: {content[who]['words']}"


def _search_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    if found["stopped"]:
        return [("search", found["stopped"])]
    ended = sum(trial["state"] != "complete" for trial in found["trials"])
    seconds = f"{significant(found['seconds'])} s"
    rows = [("search", f"{len(found['trials'])} trials of {seconds} of training, {ended} of them ended early")]
    rows += [("", search_gain(found))]
    return rows + ([] if found["is_whole"] else [("", SHORT.format(seconds=seconds))])


def search_gain(found: dict[str, Any]) -> str:
    """One line on the loss."""
    if not found["finals"]:
        return "the recipe's own values are already best: no trial had a lower validation loss"
    pairs = ", ".join(
        f"{_loss(pair['best'])} against {_loss(pair['default'])} (seed {pair['seed']})" for pair in found["finals"]
    )
    if found["taken"] == "default":
        return f"the recipe's own values stay: the best trial again had a validation loss of {pairs}"
    return f"validation loss {pairs} of the recipe's own values in the same time"


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None else significant(loss, 4)
