"""What the parts come to: a verdict for each, a ranking, and the product of single gains beside the measured whole."""

import math
from collections.abc import Mapping
from typing import Any

from .switching import ALONE, LEFT_OUT
from .techniques import TECHNIQUES

FASTER, SLOWER, SAME, UNKNOWN = "faster", "slower", "no difference", "too few rounds"
_LEAST_ROUNDS = 5  # of three, chance alone puts all on one side of 1 in one part of four
TOGETHER = "all together"  # the part that measures all of it against stock PyTorch


def part_name(technique: str, way: str) -> str:
    return f"{technique}, {way}"


def verdict(gain: Mapping[str, float], rounds: int) -> str:
    """No difference if the rounds do not agree on one, or it is no larger than half of what they lie apart."""
    if rounds < _LEAST_ROUNDS:
        return UNKNOWN
    apart = (gain["highest"] - gain["lowest"]) / 2
    if gain["lowest"] <= 1 <= gain["highest"] or abs(gain["median"] - 1) < apart:
        return SAME
    return FASTER if gain["median"] > 1 else SLOWER


def ranked(parts: Mapping[str, Mapping[str, Any]], alone: bool) -> list[dict[str, Any]]:
    """Those of one way that were measured, the largest gain first."""
    found = [dict(part) for part in parts.values() if "gain" in part and _is_of(part, alone)]
    return sorted(found, key=lambda part: -part["gain"]["median"])


def failed(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: part["failed"] for name, part in parts.items() if "failed" in part}


def _is_of(part: Mapping[str, Any], alone: bool) -> bool:
    return part.get("technique") in TECHNIQUES and (part["way"] == ALONE) is alone


def product(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Of the gains over stock PyTorch of what is in all, and stock PyTorch has not; None if there are none.

    The gain of a technique that was switched on with others is divided by theirs. missing: what is in all, too, but has
    no figure by itself.
    """
    alone = {part["technique"]: part for part in ranked(parts, alone=True) if part["has_it"]}
    names = [name for name in alone if part_name(name, LEFT_OUT) in parts]
    if not names:
        return None
    factors = {_with_needs(name, alone): _own_gain(name, alone) for name in names}
    spread = {key: math.prod(factor[key] for factor in factors.values()) for key in ("median", "lowest", "highest")}
    medians = {name: factor["median"] for name, factor in factors.items()}
    return {"gain": spread, "factors": medians, "missing": _missing(parts)}


def _missing(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Techniques that were left out of all, or should have been, and could not be measured alone."""
    return [
        name
        for name in TECHNIQUES
        if part_name(name, LEFT_OUT) in parts and "gain" not in parts.get(part_name(name, ALONE), {})
    ]


def _with_needs(name: str, alone: Mapping[str, Any]) -> str:
    """Its name, and those of what is in its gain because it was not measured by itself."""
    return " with ".join([name, *(other for other in TECHNIQUES[name].needs if other not in alone)])


def _own_gain(name: str, alone: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    gain, needs = alone[name]["gain"], [alone[other]["gain"] for other in TECHNIQUES[name].needs if other in alone]
    return {key: gain[key] / math.prod(other["median"] for other in needs) for key in ("median", "lowest", "highest")}


def why_they_differ(whole: Mapping[str, float], single: Mapping[str, float]) -> str:
    """A sentence on the measured whole beside the product of single gains."""
    if whole["lowest"] <= single["median"] <= whole["highest"]:
        return "As if each did its part alone: the product lies within the rounds of the whole."
    if single["median"] > whole["median"]:
        text = (
            "The whole is less than the product: gains overlap. What one technique has saved, page faults or passes"
            " over memory say, another cannot save again."
        )
    else:
        text = (
            "The whole is more than the product: techniques enable each other. What one of them speeds up leaves others"
            " a larger share of the step, and some work only on what another provides, as the bf16 kernels on split"
            " weights."
        )
    overlap = single["lowest"] <= whole["highest"] and whole["lowest"] <= single["highest"]
    return text + (" The rounds leave room for both to be the same." if overlap else "")


def outcome(parts: Mapping[str, Mapping[str, Any]], skipped: Mapping[str, str], is_all: bool) -> dict[str, Any]:
    """Plain JSON. skipped: part -> why it was not measured. is_all: no technique was left out by wish."""
    whole, single = parts.get(TOGETHER, {}).get("gain"), product(parts)
    return {
        "alone": [_entry(part) for part in ranked(parts, alone=True)],
        "within": [_entry(part) for part in ranked(parts, alone=False)],
        "together": whole,
        "product": single,
        "sentence": _sentence(whole, single, is_all) if whole and single else "",
        "failed": failed(parts),
        "not_measured": dict(skipped),
    }


def _sentence(whole: Mapping[str, float], single: Mapping[str, Any], is_all: bool) -> str:
    if not is_all:
        return "The product is of those alone that were asked for: it is not to be compared with the whole."
    if single["missing"]:
        names = ", ".join(single["missing"])
        return f"The product lacks what has no figure alone, {names}: it is not to be compared with the whole."
    return why_they_differ(whole, single["gain"])


def _entry(part: Mapping[str, Any]) -> dict[str, Any]:
    word = verdict(part["gain"], part["rounds"])
    return {name: part[name] for name in ("technique", "way", "gain", "rounds")} | {"verdict": word}
