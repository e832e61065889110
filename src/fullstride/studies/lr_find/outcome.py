"""What the range tests and trainings come to: in numbers, in lines, and as a config."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import durable
from ...bench.measure import spread_of
from ...recipes import catalogue, config_files
from ...recipes.config import Config
from . import rule
from .span import OWN_DIGITS, Span, as_text
from .trial import Wish, with_rate

FOUND = "found.yaml"
_SAME = 0.005  # of the loss: less is no difference


def readings(sweeps: Sequence[Mapping[str, Any]], span: Span) -> dict[str, Any]:
    """What each range test says, and all of them together."""
    repeats = []
    for part in sweeps:
        found = rule.read(part["rates"], part["losses"], span.steps, part["diverged"] is not None)
        repeats.append({
            "seed": part["seed"], "suggestion": found.suggestion, "why_not": found.why_not,
            "lowest_at": found.lowest_rate, "lowest_loss": min(found.smooth), "diverged": part["diverged"],
            "why": part["why"], "skipped": part["skipped"], "smooth": found.smooth,
        })  # fmt: skip
    able = [repeat["suggestion"] for repeat in repeats if repeat["suggestion"] is not None]
    enough = 2 * len(able) > len(repeats)
    return {
        "repeats": repeats,
        "suggestion": spread_of(able) if enough else None,
        "rate": float(f"{statistics.median(able):.1e}") if enough else None,  # two digits are what it is known to
        "lowest_at": spread_of(repeat["lowest_at"] for repeat in repeats),
        "why_not": sorted({repeat["why_not"] for repeat in repeats if repeat["why_not"]}),
    }


def outcome(config: Config, span: Span, sweeps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    share = f"{100 * rule.SHARE:.0f} %"
    return {
        "recipe": config.recipe,
        "own": config.optimizer.lr,
        "span": {"lowest": span.lowest, "highest": span.highest, "steps": span.steps},
        "rule": f"the first rate at which the smoothed loss has done {share} of its fall from the start to its lowest",
        "precision": sweeps[0]["precision"],
        "left_out": ["freezing: the range test trains every layer"] if config.freeze.enabled else [],
        **readings(sweeps, span),
        "check": None,
    }


def check(config: Config, wish: Wish, rate: float, parts: Mapping[str, Any]) -> dict[str, Any]:
    """The pairs of trainings, and what they say of the rate that was found."""
    pairs: dict[int, dict[str, Any]] = {}
    for name, (each, seed) in wish.names(config, rate).items():
        pair = pairs.setdefault(seed, {"seed": seed})
        if each == config.optimizer.lr:
            pair["own"] = parts[name]["loss"]
        if each == rate:
            pair["found"] = parts[name]["loss"]
    losses = [(pair["own"], pair["found"]) for pair in pairs.values()]
    changes = [(found - own) / abs(own) for own, found in losses if own and found is not None]
    return {
        "steps": wish.steps,
        "parts": list(wish.names(config, rate)),
        "pairs": list(pairs.values()),
        "change": spread_of(changes) if changes else None,
        "verdict": verdict(losses),
    }


def verdict(losses: Sequence[tuple[float | None, float | None]]) -> str:
    """losses: with the recipe's own rate and with the one that was found, for each seed; None: it diverged."""
    own, found = (sum(pair[i] is None for pair in losses) for i in (0, 1))
    if found:
        return f"worse: {found} of {len(losses)} trainings diverged" + (f", {own} with the recipe's own" if own else "")
    if own:
        return f"better: with the recipe's own rate {own} of {len(losses)} trainings diverged"
    changes = [(b - a) / abs(a) if a else 0.0 for a, b in losses if a is not None and b is not None]
    if max(changes) < -_SAME:
        return "better"
    if min(changes) > _SAME:
        return "worse"
    if max(map(abs, changes)) <= _SAME:
        return f"the same: less than {100 * _SAME:g} % apart"
    if max(changes) <= _SAME:
        return "no worse"
    return "undecided: the seeds do not agree"


# ---- for people ------------------------------------------------------------------------------------------------------


def headline(found: Mapping[str, Any]) -> str:
    own = f"the recipe has {as_text(found['own'], OWN_DIGITS)}"
    if found["rate"] is None:
        return f"no suggestion: {'; '.join(found['why_not'])}; {own}"
    return f"suggestion {as_text(found['rate'])} {_range(found['suggestion'])}; {own}"


def ends(found: Mapping[str, Any]) -> str:
    """Where the loss was lowest, and where it diverged."""
    places = [repeat["diverged"] for repeat in found["repeats"] if repeat["diverged"] is not None]
    lowest = found["lowest_at"]
    text = f"the loss was lowest at {as_text(lowest['median'])} {_range(lowest)}"
    if not places:
        return f"{text}; no divergence up to {as_text(found['span']['highest'])}"
    spread = spread_of(places)
    return f"{text}; {len(places)} of {len(found['repeats'])} diverged, at {as_text(spread['median'])} {_range(spread)}"


def checked(found: Mapping[str, Any]) -> list[str]:
    """A line for each seed, and one for all."""
    told = found["check"]
    length = "all steps of the recipe" if told["steps"] is None else f"{told['steps']:,} steps"
    lines = []
    for pair in told["pairs"]:
        own, new = (("diverged" if pair[who] is None else f"{pair[who]:.4f}") for who in ("own", "found"))
        rates = f"{new} with {as_text(found['rate'])}, {own} with {as_text(found['own'], OWN_DIGITS)}"
        lines.append(f"{length}, seed {pair['seed']}: validation loss {rates}")
    change = ""
    if told["change"] is not None:
        low, middle, high = (100 * told["change"][name] for name in ("lowest", "median", "highest"))
        change = f"{middle:+.2f} %" + (f" [{low:+.2f}..{high:+.2f}]" if len(told["pairs"]) > 1 else "") + ": "
    seeds = "one seed" if len(told["pairs"]) == 1 else f"{len(told['pairs'])} seeds"
    return [*lines, f"{change}{told['verdict']} ({seeds})"]


def lines(found: Mapping[str, Any], config: Config, folder: Path, written: Sequence[Path]) -> list[str]:
    """What the command says at the end."""
    told = [("rate", headline(found)), ("curve", ends(found))]
    told += [("left out", text) for text in found["left_out"]]
    told += [("check", text) for text in checked(found)] if found["check"] else []
    told += [("use", command) for command in commands(found, config, folder)]
    told += [("report", str(path)) for path in written]
    before = ""
    shown = []
    for name, text in told:
        shown.append(f"{name if name != before else '':<9} {text}")
        before = name
    return shown


def commands(found: Mapping[str, Any], config: Config, folder: Path) -> list[str]:
    """How to train with it."""
    if found["rate"] is None:
        return []
    plain = [f"fullstride train {config.recipe} --optimizer.lr {as_text(found['rate'])}"]
    is_plain = config == catalogue.get(config.recipe)()
    return (plain if is_plain else []) + [f"fullstride train --config {folder / FOUND}"]


def write_config(folder: Path, config: Config, found: Mapping[str, Any]) -> None:
    """found.yaml, for `fullstride train --config`; without a suggestion there is none."""
    if found["rate"] is None:
        (folder / FOUND).unlink(missing_ok=True)
        return
    about = f"# By `fullstride lr-find {config.recipe}`: {headline(found)}.\n"
    durable.replace(folder / FOUND, (about + config_files.to_yaml(with_rate(config, found["rate"]))).encode())


def _range(spread: Mapping[str, float]) -> str:
    return f"[{as_text(spread['lowest'])}..{as_text(spread['highest'])}]"
