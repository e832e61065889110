"""What `fullstride ablate` found, as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from .outcome import TOGETHER, ranked, verdict
from .switching import ADDED, LEFT_OUT

LEGEND = """\
how many times as fast a step is with the technique: median [lowest..highest] of the rounds, in which the process with
it and the one without it take turns on the same data; no difference: the rounds do not agree on one; below five there
is no verdict. memory: the most that each process held after the same number of steps, without -> with. loss: mean of
the last steps, without -> with, and how far single steps lie apart"""


def as_ratio(gain: Mapping[str, float]) -> str:
    return f"{gain['median']:.2f}x [{gain['lowest']:.2f}..{gain['highest']:.2f}]"


def as_memory(memory: Mapping[str, Any]) -> str:
    without, having = (memory[key] / 2**20 for key in ("without", "with"))
    return f"{without:.0f} -> {having:.0f} MiB"


def as_loss(loss: Mapping[str, Any]) -> str:
    means = " -> ".join("not finite" if loss[key] is None else f"{loss[key]:.4f}" for key in ("without", "with"))
    apart = loss["difference"]
    return means if apart is None else f"{means} [{apart['lowest']:+.1e}..{apart['highest']:+.1e}]"


def said(part: Mapping[str, Any]) -> str:
    """Of one part, when it is done."""
    return f"{as_ratio(part['gain'])} {as_verdict(part)}"


def as_verdict(part: Mapping[str, Any]) -> str:
    """And of how many rounds it is."""
    return f"{verdict(part['gain'], part['rounds'])} ({part['rounds']} rounds)"


def lines(parts: Mapping[str, Any], outcome: Mapping[str, Any]) -> list[str]:
    """Both rankings, the whole, and what there are no figures of."""
    text = [LEGEND]
    text += _ranking("alone over stock PyTorch", ranked(parts, alone=True))
    within = ranked(parts, alone=False)
    text += _ranking("left out of all", [part for part in within if part["way"] == LEFT_OUT])
    text += _ranking("added to all, which the recipe does not do", [part for part in within if part["way"] == ADDED])
    text += together(parts, outcome)
    for title, reasons in (("failed", outcome["failed"]), ("not measured", outcome["not_measured"])):
        text += ["", f"{title}:", *(f"  {name}: {why}" for name, why in reasons.items())] if reasons else []
    return text


def together(parts: Mapping[str, Any], outcome: Mapping[str, Any]) -> list[str]:
    whole, single = outcome["together"], outcome["product"]
    if whole is None:
        return []
    part = parts[TOGETHER]
    text = [
        "",
        f"all over stock PyTorch: {as_ratio(whole)} {as_verdict(part)}, {as_memory(part['memory'])},"
        f" loss {as_loss(part['loss'])}",
    ]
    if single is not None:
        factors = ", ".join(f"{name} {gain:.2f}" for name, gain in single["factors"].items())
        text += [f"product of {len(single['factors'])} single gains: {as_ratio(single['gain'])} ({factors})"]
        text += [outcome["sentence"]]
    return text


def _ranking(title: str, found: Sequence[Mapping[str, Any]]) -> list[str]:
    if not found:
        return []
    rows = [
        (p["technique"], as_ratio(p["gain"]), as_verdict(p), as_memory(p["memory"]), as_loss(p["loss"]), p["note"])
        for p in found
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    text = ["", f"{title}:"]
    for row in rows:
        cells = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False))
        text.append(f"  {cells}  {row[5]}".rstrip())
    return text
