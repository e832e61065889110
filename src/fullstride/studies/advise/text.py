"""An advice as lines of text."""

from collections.abc import Mapping
from typing import Any

from ...machine.memory import as_size
from . import devices
from .changes import PAYS
from .prediction import BANDWIDTH, COMPUTE, KINDS, OVERHEAD

_MOST_LINES = 12  # of passes
_INDENT = 12
_GOAL = 0.20  # of the error of the time
LIMITS = {COMPUTE: "the peak of products", BANDWIDTH: "the bandwidth of the memory", OVERHEAD: "the cost of calls"}


def lines(content: Mapping[str, Any]) -> list[str]:
    blocks = [
        ("predicted", _predicted(content)), ("memory", _memory(content)),
        ("energy", energy(content["energy"])), ("checked", checked(content)), ("passes", _passes(content)),
        ("bottleneck", bottleneck(content)), ("change", changed(content)), ("data", _data(content)),
        ("devices", _devices(content)),
    ]  # fmt: skip
    found = []
    for label, own in blocks:
        found += [f"{label if i == 0 else '':<{_INDENT}}{line}".rstrip() for i, line in enumerate(own)]
    return [_title(content), "", *found]


def _title(content: Mapping[str, Any]) -> str:
    batch = f"{content['units_per_step']:,} {content['unit']} a step"
    parts = f"{content['accumulate']} x {content['micro_batch']} samples"
    return f"{content['recipe']}: {content['parameters']:,} parameters, {batch} ({parts}), {content['precision']}"


def _predicted(content: Mapping[str, Any]) -> list[str]:
    found = content["prediction"]
    rate = content["units_per_step"] / found["seconds"]
    text = [f"{1e3 * found['seconds']:.4g} ms a step, {rate:,.0f} {content['unit']} a second"]
    for kind, seconds in found["by_kind"].items():
        share = seconds / found["seconds"]
        text.append(f"  {1e3 * seconds:8.2f} ms {100 * share:4.0f} %  {KINDS[kind]}")
    rate, peak = found["flops"] / found["seconds"] / 1e9, found["peak_gflops"]
    text.append(f"  {found['flops'] / 1e9:.3g} GFLOP and {found['bytes'] / 1e9:.3g} GB a step: {rate:.0f} GFLOP/s;")
    text.append(f"  this machine reaches {peak:.0f} GFLOP/s and {found['bandwidth_gbs']:.0f} GB/s at best")
    if content["busy"] is not None:
        text.append(f"  others used this machine meanwhile (load {content['busy']:.1f}): a quiet one gives other rates")
    if content["unknown_products"]:
        count = len(content["unknown_products"])
        first = content["unknown_products"][0]
        text.append(f"  {count} kinds of products could not be run alone and count at the peak, {first} among them")
    return text


def _memory(content: Mapping[str, Any]) -> list[str]:
    memory = content["memory"]
    text = [f"about {as_size(memory['bytes'])} at most, of {as_size(memory['available'])} that there is"]
    return text + [f"  {name:<12} {as_size(size):>9}" for name, size in memory["parts"].items()]


def energy(content: Mapping[str, Any]) -> list[str]:
    if not content["measured"]:
        return [f"not measured: {content['why']}"]
    text = [f"{content['joules']:.3g} J a step, {content['joules_a_sample']:.3g} J a sample, at the"
            f" {content['watts']:.0f} W of the short run"]  # fmt: skip
    if "carbon_grams" in content:
        text.append(f"{content['carbon_grams']:.3g} g of CO2 a step, at {content['grams_a_kwh']:g} g a kWh")
    return text


def checked(content: Mapping[str, Any]) -> list[str]:
    """The short run, and how far off the prediction is."""
    run = content["check"]
    if run is None:
        return ["not by a run: a prediction alone"]
    ms, error = run["milliseconds"], content["errors"]["time"]
    missed = "" if abs(error) <= _GOAL else f", more than the {percent(_GOAL, 0)} that were aimed at"
    text = [
        f"{ms['median']:.4g} ms a step, median [{ms['lowest']:.4g}..{ms['highest']:.4g}] of {run['turns']} turns of"
        f" {run['steps']} steps",
        f"  the predicted time is {_off(error)}{missed}",
    ]
    if run["peak_bytes"] is None:
        text.append("  memory was not checked: this process holds more than the model")
    else:
        off = _off(content["errors"]["memory"])
        text.append(f"  {as_size(run['peak_bytes'])} held at most: the predicted memory is {off}")
    if run["load"] > 1.5 * run["cores"]:
        text.append(f"  load {run['load']:g}: others were measured, too")
    return text


def percent(share: float, decimals: int = 1) -> str:
    return f"{100 * share:.{decimals}f} %"


def _off(error: float) -> str:
    return f"{percent(abs(error))} too {'low' if error < 0 else 'high'}"


def _passes(content: Mapping[str, Any]) -> list[str]:
    found = content["prediction"]
    rows: list[tuple[str, ...]] = [("ms", "share", "calls", "GFLOP/s", "GB/s", "limit", "of it", "what")]
    rows += [cells(line, found["seconds"]) for line in found["lines"][:_MOST_LINES]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = ["  ".join(f"{cell:>{width}}" if i < 7 else cell for i, (cell, width) in
                      enumerate(zip(row, widths, strict=True))) for row in rows]  # fmt: skip
    rest = found["lines"][_MOST_LINES:]
    if rest:
        text.append(f"... and {1e3 * sum(line['seconds'] for line in rest):.2f} ms in {len(rest)} more kinds of passes")
    return text


def cells(line: Mapping[str, Any], whole: float) -> tuple[str, ...]:
    """Of a table: ms, share, calls, GFLOP/s, GB/s, limit, of it, what."""
    seconds = line["seconds"]
    rates = [f"{line[name] / seconds / 1e9:.0f}" if line[name] and seconds else "-" for name in ("flops", "nbytes")]
    near = "-" if line["limit"] == OVERHEAD else percent(min(1.0, line["of_limit"]), 0)
    phase = "" if line["phase"] in ("all", "optimizer") else f", {line['phase']}"
    return (f"{1e3 * seconds:.2f}", percent(seconds / whole), str(line["num_calls"]), *rates, line["limit"], near,
            line["what"] + phase)  # fmt: skip


def bottleneck(content: Mapping[str, Any]) -> list[str]:
    found = content["bottleneck"]
    whose = "predicted" if content["check"] is None else "measured"
    text = f"{KINDS[found['kind']]}: {percent(found['share'], 0)} of the step, bound by {LIMITS[found['limit']]}"
    if found["limit"] != OVERHEAD:
        text += f" and at {percent(found['of_limit'], 0)} of it"
    whole = f"all passes at their limits would take {1e3 * found['seconds_at_limits']:.4g} ms,"
    return [text, f"  {whole} {percent(found['step_of_limits'], 0)} of the {whose} step"]


def changed(content: Mapping[str, Any]) -> list[str]:
    """What pays first, then what would not."""
    entries = content["changes"]
    if not entries:
        return ["nothing that was looked at"]
    ranked = sorted(entries, key=lambda entry: -entry.get("gain", 0.0))
    return [change_line(entry, content["is_recipe"]) for entry in ranked]


def change_line(entry: Mapping[str, Any], as_options: bool = True) -> str:
    """as_options: of the command line."""
    what = entry["options" if as_options else "name"]
    if entry["trouble"]:
        return f"{what}: cannot be: {entry['trouble']}"
    gain = f"{entry['gain']:.2f}x samples a second, predicted"
    memory = f"about {as_size(entry['memory'])}" + ("" if entry["fits"] else ", more than there is")
    if entry["gain"] < PAYS and not entry["saves_memory"]:
        return f"{what}: would not pay, {gain}"
    return f"{what}: {gain}; {memory}; {entry['why']}"


def _data(content: Mapping[str, Any]) -> list[str]:
    step = content["prediction"]["seconds"]
    made = content["batch_seconds"] * content["accumulate"]
    text = f"the batches of a step take {1e3 * made:.3g} ms to make on one core, {percent(made / step, 0)} of the step"
    return [text + ("; workers make them beside it" if made > 0.05 * step else "")]


def _devices(content: Mapping[str, Any]) -> list[str]:
    if not content["looked_for_devices"]:
        return ["not looked for"]
    return [devices.NONE] if content["devices"] is None else devices.lines(content["devices"])
