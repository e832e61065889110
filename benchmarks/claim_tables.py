"""Claims that earlier systems of this kind made without measuring, and what was measured here: block `claims`.

Each claim has a function that looks for figures of one machine and judges: confirmed, not confirmed here, or depends.
Where the claim names no model, no size or no price, ours are told.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from . import machine_tables, step_rows
from .cells import NOT_MEASURED, commit, line, ratio, table, with_spread
from .kernel_tables import parameters_per_second
from .result_files import File, Spread, date_of, rows, spread
from .step_rows import OURS, STOCK_BEST, STOCK_DEFAULT, gain_over, newest_steps, side_if
from .tables import speed

CONFIRMED, NOT_CONFIRMED, DEPENDS = "confirmed", "not confirmed here", "depends"
_DIGITS = {"%": 1, "x": 2, "ms": 0, "MiB": 0, "GB/s": 1, "points": 2, "nats": 4}


class Found(NamedTuple):
    text: str
    parts: Sequence[Mapping[str, Any]]  # of the results: their commands and conditions
    verdict: str


class Claim(NamedTuple):
    quote: str
    find: Callable[[Mapping[str, File]], Found | None]  # in the files of one machine, by suite


def claims(files: list[File]) -> list[str]:
    """A row for each claim and machine; one alone for a claim that nobody has looked into."""
    lines = table(["claim", "measured here", "verdict", "on", "by, commit, date"])
    for claim in CLAIMS:
        answers = [(machine, claim.find(_by_suite(files, machine))) for machine in machine_tables.names(files)]
        found = [(machine, answer) for machine, answer in answers if answer is not None]
        for machine, answer in found:
            cores = _each_once(str(part["conditions"]["usable_cores"]) for part in answer.parts)
            where = f"{machine_tables.title_of(files, machine)}, {cores} cores"
            lines.append(line([f'"{claim.quote}"', answer.text, f"**{answer.verdict}**", where, _taken(answer.parts)]))
        if not found:
            lines.append(line([f'"{claim.quote}"', NOT_MEASURED, "", "", ""]))
    return lines


def _taken(parts: Sequence[Mapping[str, Any]]) -> str:
    """Commands, commits and dates."""
    first, *others = dict.fromkeys(part["command"] for part in parts)
    more = f" and {len(others)} more for other models" if others else ""
    return f"`{first}`{more}, {_each_once(map(commit, parts))}, {_each_once(map(date_of, parts))}"


def _each_once(texts: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(texts))


def without_quotes(text: str) -> str:
    """The text without the claims themselves, whose figures are others'."""
    for claim in CLAIMS:
        text = text.replace(f'"{claim.quote}"', "")
    return text


def verdict(answers: list[bool]) -> str:
    """Of what was found case by case."""
    return CONFIRMED if all(answers) else DEPENDS if any(answers) else NOT_CONFIRMED


def reaches(value: Spread, least: float) -> list[bool]:
    """By its median and by its highest round: where only the latter does, it depends."""
    return [value.median >= least, (value.median if value.highest is None else value.highest) >= least]


def _by_suite(files: list[File], machine: str) -> dict[str, File]:
    return {file.suite: file for file in files if file.machine == machine}


def _measured(own: Mapping[str, File], claim: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(part, row) of suite claims."""
    return [(part, row) for part, row in rows(own.get("claims")) if row["claim"] == claim]


def _parts(found: Iterable[step_rows.Row]) -> list[dict[str, Any]]:
    return [part for part, _ in found]


def show(figure: Mapping[str, Any]) -> str:
    """5.6 %, or with its spread where there is one."""
    unit = figure["unit"]
    value = spread(figure)
    told = Spread(value.median) if value.lowest == value.highest else value
    return with_spread(told, _DIGITS[unit], unit if unit == "x" else f" {unit}")


# ---- of suite claims -----------------------------------------------------------------------------------------------


def _fusion(own: Mapping[str, File]) -> Found | None:
    found = _measured(own, "fusion")
    if not found:
        return None
    cases = [
        f"{row['case']}: {show(row['figures']['bytes saved'])} of the bytes, {show(row['figures']['times as fast'])}"
        for _, row in found
    ]
    saved = [row["figures"]["bytes saved"]["median"] for _, row in found]
    text = f"forward in fp32, bytes counted (x, W, b, y), time against our product and torch's ReLU: {'; '.join(cases)}"
    return Found(text, _parts(found), verdict([share >= 33 for share in saved]))


def _bf16_memory(own: Mapping[str, File]) -> Found | None:
    found = _measured(own, "bf16_memory")
    if not found:
        return None
    cases = []
    for _, row in found:
        figures = row["figures"]
        parts = [name.removesuffix(" fp32") for name in figures if name.endswith(" fp32")]
        sizes = [f"{part} {show(figures[f'{part} fp32'])} -> {show(figures[f'{part} bf16'])}" for part in parts]
        cases.append(f"{row['case']}: {', '.join(sizes)}")
    halves = [row["figures"]["peak bf16"]["median"] <= 0.55 * row["figures"]["peak fp32"]["median"] for _, row in found]
    text = f"fp32 -> bf16; peak: the most the process held, grown: without what it began with. {'; '.join(cases)}"
    return Found(text, _parts(found), verdict(halves))


def _freezing(own: Mapping[str, File]) -> Found | None:
    found = _measured(own, "freezing")
    if not found:
        return None
    part, row = found[0]
    saved, lost = row["figures"]["saved"], row["figures"]["accuracy lost"]
    text = (
        f"{row['case']}, the defaults: {show(saved)} of the counted work (products that were not done; their time was"
        f" not measured), accuracy lower by {show(lost)}"
    )
    more = "; [experiments.md](experiments.md) has other thresholds, a language model and fine-tuning"
    return Found(text + more, [part], verdict([15 <= saved["median"] <= 25]))


def _layer_norm(own: Mapping[str, File]) -> Found | None:
    found = _measured(own, "layer_norm")
    if not found:
        return None
    cases = [
        f"{row['case']}: {show(row['figures']['rate'])}, {show(row['figures']['times as fast as torch'])} torch's"
        for _, row in found
    ]
    reached = [row["figures"]["rate"]["median"] >= 3.34 for _, row in found]
    text = f"forward in fp32, rows x columns, bytes read and written once: {'; '.join(cases)}"
    return Found(text, _parts(found), verdict(reached))


def _accumulation(own: Mapping[str, File]) -> Found | None:
    found = _measured(own, "accumulation")
    if not found:
        return None
    cases, costs_nothing = [], []
    for _, row in found:
        figures = row["figures"]
        sizes = [f"{part} {show(figures[f'{part} one'])} -> {show(figures[f'{part} several'])}"
                 for part in ("gradients", "peak") if f"{part} one" in figures]  # fmt: skip
        cases.append(f"{row['case']}: {', '.join(sizes)}")
        costs_nothing.append(figures["peak several"]["median"] <= 1.01 * figures["peak one"]["median"])
    return Found(f"one micro-batch -> several; {'; '.join(cases)}", _parts(found), verdict(costs_nothing))


def _lamb(own: Mapping[str, File]) -> Found | None:
    found = _measured(own, "lamb")
    if not found:
        return None
    part, row = found[0]
    figures = row["figures"]
    worse = figures["held out loss higher by"]
    text = (
        f"{row['case']}: held-out loss {show(figures['loss with LAMB and Lookahead'])}, with AdamW"
        f" {show(figures['loss with AdamW'])}; seed by seed {show(worse)} higher"
    )
    how = verdict([worse["lowest"] < 0, worse["highest"] < 0])
    return Found(text, [part], f"{how}, at its default rate, this recipe")


def _step(own: Mapping[str, File]) -> Found | None:
    found = _measured(own, "step")
    if not found:
        return None
    part, row = found[0]
    figures = row["figures"]
    text = (
        f"{row['case']} in fp32, {show(figures['time without'])} with torch's AdamW as it comes: shorter by"
        f" {show(figures['shorter by both'])} with both, {show(figures['shorter by overlap'])} with overlap alone,"
        f" {show(figures['shorter by our AdamW'])} with our AdamW alone"
    )
    return Found(text, [part], verdict(reaches(spread(figures["shorter by both"]), 14)))


# ---- of steps and kernels ------------------------------------------------------------------------------------------


def _gains(own: Mapping[str, File]) -> Found | None:
    found = {
        name: row for name, row in newest_steps(own.get("steps")).items() if side_if(row[1], STOCK_DEFAULT) is not None
    }
    if not found:
        return None
    over, enough = [], []
    for peer in (STOCK_DEFAULT, STOCK_BEST):
        twice = [gain_over(row, peer).median >= 2 for _, row in found.values()]
        over.append(f"over {peer} {_range(found, peer)}, at least twice as fast in {sum(twice)} of {len(twice)}")
        enough += twice
    text = f"the claim does not say with which options of PyTorch; a training step: {'; '.join(over)}"
    return Found(text, _parts(found.values()), verdict(enough))


def _range(found: Mapping[str, step_rows.Row], peer: str) -> str:
    """From the smallest gain to the largest, and of which models they are."""
    order = sorted(found, key=lambda name: gain_over(found[name][1], peer).median)
    ends = [f"{ratio(gain_over(found[name][1], peer))} ({name})" for name in (order[0], order[-1])]
    return f"from {ends[0]} to {ends[1]}" if len(order) > 1 else ends[0]


def _samples(own: Mapping[str, File]) -> Found | None:
    found = newest_steps(own.get("steps")).get("mlp")
    if found is None:
        return None
    part, row = found
    ours, default = step_rows.side(row, OURS), side_if(row, STOCK_DEFAULT)
    rate = step_rows.units_per_second(ours)
    if rate is None:
        return None
    stock = step_rows.units_per_second(default) if default else None
    beside = f"; {STOCK_DEFAULT}: {speed(default)}" if default else ""
    text = f"the claim names no model; {step_rows.title('mlp')}, {ours['precision']}: {speed(ours)}{beside}"
    # Where stock PyTorch reaches it as well, the figure is one of the model and not of a system.
    stock_too = stock is not None and stock.median >= 150
    return Found(text, [part], NOT_CONFIRMED if rate.median < 150 else DEPENDS if stock_too else CONFIRMED)


def _adamw(own: Mapping[str, File]) -> Found | None:
    cases = [pair for suite in ("kernels_heap_kept", "kernels") for pair in rows(own.get(suite))]
    found = [(part, row) for part, row in cases if row["op"] == "adam" and "fp32 weights, fp32 states" in row["case"]]
    found = [(part, row) for part, row in found if any(peer["name"] == "torch default" for peer in row["peers"])]
    if not found:
        return None
    part, row = found[0]
    peers = {peer["name"]: spread(peer["ratio"]) for peer in row["peers"]}
    rate = parameters_per_second(row)
    told = [f"{rate / 1e9:.2f} G parameters/s"] if rate else []
    told += [f"{ratio(value)} as fast as {name}" for name, value in peers.items() if name.startswith("torch")]
    default = peers["torch default"]
    fast = [] if rate is None else [rate >= 1.48e9]
    reached = [*fast, *reaches(default, 6.4)]
    return Found(f"{row['case']}, the step alone: {', '.join(told)}", [part], verdict(reached))


CLAIMS = (
    Claim("fused Linear+ReLU saves 33 % of traffic", _fusion),
    Claim("bf16 halves memory", _bf16_memory),
    Claim("freezing saves 15-25 %", _freezing),
    Claim("2-4x over standard PyTorch", _gains),
    Claim("150-200 samples/s on 12 cores", _samples),
    Claim("AdamW 1.48 G parameters/s, 6.4x", _adamw),
    Claim("LayerNorm 3.34 GB/s", _layer_norm),
    Claim("accumulation costs no memory", _accumulation),
    Claim("LAMB + Lookahead converge better", _lamb),
    Claim("a step 14 % shorter by overlap and vectorised Adam", _step),
)
