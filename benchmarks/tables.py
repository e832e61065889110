"""Results as tables in Markdown. Each function makes the lines of one block of a document (render.py).

`where` is a kind of instructions ("avx2": the newest results of such a CPU) or a machine, the name of its folder.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from . import step_rows
from .cells import DIED, KINDS, NOT_MEASURED, kind_of, line, median_ms, ms, number, ratio, table, taken, with_spread
from .result_files import File, date_of, rows, spread
from .step_rows import OURS, STOCK_BEST, STOCK_DEFAULT, Row, gain_over, newest_steps, side_if
from .suites import name_of_step


def find(files: list[File], suite: str, where: str) -> File | None:
    """Of this machine, or the newest file of the suite from a CPU with these instructions."""
    own = [file for file in files if file.suite == suite]
    found = [file for file in own if file.machine == where or file.machine.endswith(f"-{where}")]
    return max(found, key=lambda file: max(str(part["conditions"]["date"]) for part in file.parts), default=None)


def nothing(where: str) -> list[str]:
    who = f"CPUs with {KINDS[where]}" if where in KINDS else where
    return [f"On {who} nothing was taken yet."]


def gain(files: list[File]) -> list[str]:
    """README's table: how many times as fast a step is, by kind of CPU."""
    all_kinds = {isa: newest_steps(find(files, "steps", isa)) for isa in KINDS}
    missing = [f"On CPUs with {KINDS[isa]} nothing was measured yet." for isa, found in all_kinds.items() if not found]
    steps = {isa: found for isa, found in all_kinds.items() if found}
    if not steps:
        return missing
    lines = table(["model", *(_kind(isa, found) for isa, found in steps.items())])
    for name in step_rows.MODELS:
        lines.append(line([step_rows.title(name), *(_gain(found.get(name)) for found in steps.values())]))
    return [*lines, "", " ".join([_taken_with(steps), *missing])]


def _taken_with(steps: dict[str, dict[str, Row]]) -> str:
    """Dates, cores and versions by kind of CPU; the latter two once where they are the same for all."""
    dates, means = [], []
    for isa, found in steps.items():
        parts = [part for part, _ in found.values()]
        dates.append(f"{KINDS[isa]} on {_among(map(date_of, parts))}")
        means.append(_among(map(_cores_and_torch, parts)))
    if len(set(means)) == 1:
        return f"Taken with {means[0]}: {', '.join(dates)}."
    return f"Taken: {'; '.join(f'{date} with {mean}' for date, mean in zip(dates, means, strict=True))}."


def steps(files: list[File], where: str) -> list[str]:
    """Milliseconds, what is trained a second, gains with their spread, share of the peak, memory."""
    file = find(files, "steps", where)
    found = newest_steps(file)
    if not found:
        return nothing(where)
    lines = table([
        "model", "Fullstride", "stock default", "stock at its best", "gain over default", "gain over its best",
        "speed", "share of peak", "most memory, ours / default", "commit, date, load",
    ])  # fmt: skip
    for name, (part, row) in found.items():
        lines.append(_step(name, part, row))
    older = [(part, row) for part, row in rows(file) if found[name_of_step(row)][1] is not row]
    for part, row in older:
        over = [ratio(gain_over(row, peer)) for peer in (STOCK_DEFAULT, STOCK_BEST)]
        told = f"{over[0]} over default, {over[1]} over its best"
        lines += ["", f"An older take of {step_rows.title(name_of_step(row))}: {told} ({taken(part)})."]
    return lines


def _step(name: str, part: dict[str, Any], row: dict[str, Any]) -> str:
    ours, default, best = step_rows.side(row, OURS), side_if(row, STOCK_DEFAULT), step_rows.best(row)
    best_time = "as it comes" if best is default else f"{ms(best)} ({best['name'].partition('(')[2][:-1]})"
    return line([
        f"{step_rows.title(name)}, {len(ours['milliseconds'])} rounds", ms(ours),
        DIED if default is None else ms(default), best_time,
        DIED if default is None else f"**{ratio(gain_over(row, STOCK_DEFAULT))}**",
        ratio(gain_over(row, STOCK_BEST)), speed(ours), _share_of_peak(ours),
        f"{ours['peak_bytes'] >> 20} / {DIED if default is None else default['peak_bytes'] >> 20} MiB", taken(part),
    ])  # fmt: skip


def speed(side: Mapping[str, Any]) -> str:
    """Samples, tokens, frames or pairs a second."""
    found = step_rows.units_per_second(side)
    digits = 0 if found is None or found.median >= 100 else 1
    return "" if found is None else with_spread(found, digits, f" {side['facts']['unit']}/s")


def _share_of_peak(side: Mapping[str, Any]) -> str:
    share = side["share_of_peak"]
    return "" if share is None else f"{100 * share:.0f} % {side['precision']}, {side['gflops']:.0f} GFLOP/s"


def compared(files: list[File], where: str) -> list[str]:
    """Of `fullstride compare`: each recipe as it is, on its own data."""
    file = find(files, "recipes", where)
    lines = table([
        "recipe", "Fullstride", "stock default", "gain", "speed", "most memory, ours / default", "commit, date, load",
    ])  # fmt: skip
    for part in file.parts if file else ():
        ours, default = part["sides"][0], side_if(part, STOCK_DEFAULT)
        gains = [ratio(spread(own["ratio"])) for own in part["ratios"] if own["peer"] == STOCK_DEFAULT]
        lines.append(line([
            f"{part['recipe']}, {part['turns']['rounds']} rounds", f"{ms(ours)} {ours['precision']}",
            ms(default) if default else DIED, f"**{gains[0]}**" if gains else DIED,
            with_spread(spread(ours["throughput"]), 0, f" {part['unit']}/s"),
            f"{ours['peak_bytes'] >> 20} / {default['peak_bytes'] >> 20 if default else DIED} MiB", taken(part),
        ]))  # fmt: skip
    return lines if file else nothing(where)


def losses(files: list[File], where: str) -> list[str]:
    """Largest relative difference of a loss to stock default's at the same step."""
    lines = table(["model", "steps", "side", "largest difference"])
    for name, (_, row) in newest_steps(find(files, "steps", where)).items():
        for side, value in row["loss_differences"].items():
            told = "not a number" if value is None else f"{value:.1e}"
            lines.append(line([step_rows.title(name), str(row["num_losses"]), side, told]))
    return lines if len(lines) > 2 else nothing(where)


def trainer(files: list[File], where: str) -> list[str]:
    file = find(files, "trainer", where)
    lines = table(["what the trainer costs", "median [lowest..highest] of the rounds"])
    for part in file.parts if file else ():
        for side, title in (("bare", "a step of a bare loop"), ("trainer", "a step of the trainer")):
            lines.append(line([title, with_spread(spread(part["step_ms_medians"][side]), 0, " ms")]))
        for name, title in (("overhead", "longer by"), ("data_share", "share of time spent waiting for data")):
            lines.append(line([title, with_spread(spread([100 * value for value in part[name]]), 2, " %")]))
        start_up = with_spread(spread(part["start_up_seconds"]), 2, " s")
        lines += [line(["from the imports to the first step", start_up]), line(["taken", taken(part)])]
    return lines if file else nothing(where)


def curves(files: list[File], where: str) -> list[str]:
    """Sides of the curves, one run each; no spread."""
    file = find(files, "llama_curves", where)
    lines = table(["recipe", "side", "steps", "time", "speed", "last validation loss", "most memory", "taken"])
    for part in file.parts if file else ():
        for side in part["sides"]:
            last = side["points"][-1]
            lines.append(line([
                part["recipe"], side["name"], str(side["steps"]), f"{side['seconds']:.0f} s",
                f"{side['units_per_second']:.0f} {side['unit']}/s", f"{last['loss']:.3f} at step {last['step']}",
                f"{side['peak_bytes'] >> 20} MiB", taken(part),
            ]))  # fmt: skip
    return lines if file else nothing(where)


def profile(files: list[File], where: str) -> list[str]:
    file = find(files, "llama_profile", where)
    lines = table(["part of a step", "time", "share", "what the machine needs"])
    for part in file.parts if file else ():
        for name, found in sorted(part["parts"].items(), key=lambda item: -item[1]["ms"]):
            needs = f"{number(found['needs_ms'])} ms" if found["needs_ms"] else ""
            lines.append(line([name, f"{number(found['ms'])} ms", f"{100 * found['share']:.1f} %", needs]))
        whole = f"{part['step_ms']:.0f} ms, under the profiler {part['profiled_step_ms']:.0f} ms"
        lines += ["", f"A step: {whole}; {part['precision']}, one run ({taken(part)})."]
    return lines if file else nothing(where)


def speech_profile(files: list[File], where: str) -> list[str]:
    file = find(files, "fastspeech2_profile", where)
    return speech_profile_of(file.parts[-1]) if file else nothing(where)


def speech_profile_of(part: Mapping[str, Any]) -> list[str]:
    """Of `python -m benchmarks.fastspeech2_profile`: parts, phases, memory, and what 200 epochs would take."""
    sides = part["sides"]
    names = [side["name"] for side in sides]
    lines = table(["part, batch 16, forward + backward", "GFLOP", *names])
    for name, flops in part["gflop"].items():
        times = [f"{median_ms(side['forward_ms'][name])} + {median_ms(side['backward_ms'][name])}" for side in sides]
        lines.append(line([name, f"{flops['forward']:.2f} + {flops['backward']:.2f}", *times]))
    lines += ["", *table(["batch 16", *names])]
    for name in sides[0]["phases_ms"]:
        lines.append(line([name, *(with_spread(spread(side["phases_ms"][name]), 0, " ms") for side in sides)]))
    speeds = [with_spread(spread(side["units_per_second"]), 0, "") for side in sides]
    lines.append(line(["mel frames a second", *speeds]))
    for name in sides[0]["memory"]:
        title = f"memory of {name.removesuffix('_bytes')}"
        lines.append(line([title, *(f"{side['memory'][name] >> 20} MiB" for side in sides)]))
    for name in sides[0]["peaks"]:
        title = f"most memory of the process, batch {name}"
        lines.append(line([title, *(f"{side['peaks'][name]['peak_bytes'] >> 20} MiB" for side in sides)]))
    hours = [with_spread(spread(side["hours"]), 0, " h") for side in sides]
    lines.append(line(["200 epochs of a 24-hour corpus, 16 x 2, estimated", *hours]))
    return [*lines, "", f"Median [lowest..highest] of {part['rounds']} rounds; parts: medians ({taken(part)})."]


def clip_profile(files: list[File], where: str) -> list[str]:
    file = find(files, "clip_profile", where)
    return clip_profile_of(file.parts[-1]) if file else nothing(where)


def clip_profile_of(part: Mapping[str, Any]) -> list[str]:
    """Of `python -m benchmarks.clip_profile`: milliseconds of a step by kind of operation."""
    sides = [side for side in part["sides"] if "failed" not in side]
    lines = table([part["model"], *(f"{side['name']} ({side['precision']})" for side in sides)])
    for kind in sides[0]["kinds_ms"]:
        lines.append(line([kind, *(median_ms(side["kinds_ms"][kind]) for side in sides)]))
    for title, name in (("all, under the profiler", "profiled_ms"), ("a step without it", "step_ms")):
        lines.append(line([title, *(with_spread(spread(side[name]), 0, " ms") for side in sides)]))
    failed = [f"{side['name']}: {side['failed']}." for side in part["sides"] if "failed" in side]
    return [*lines, "", " ".join([f"Medians of {part['rounds']} rounds ({taken(part)}).", *failed])]


def mechanisms(files: list[File], where: str) -> list[str]:
    """How many times as fast a step is with a mechanism than without, by model."""
    file = find(files, "mechanisms", where)
    found = [row for _, row in rows(file)]
    models = list(dict.fromkeys(row["model"] for row in found))
    lines = table(["mechanism", *models])
    for name in dict.fromkeys(row["mechanism"] for row in found):
        gains = {row["model"]: with_spread(spread(row["gain"]), 3, "x") for row in found if row["mechanism"] == name}
        lines.append(line([f"`{name}`", *(gains.get(model, NOT_MEASURED) for model in models)]))
    for part in file.parts if file else ():
        facts = part["conditions"]
        lines += ["", f"Taken on {facts['cpu']} ({kind_of(facts)}), {taken(part)}."]
    return lines if file else nothing(where)


def thresholds(files: list[File], where: str) -> list[str]:
    file = find(files, "thresholds", where)
    return thresholds_of(file.parts[-1]) if file else nothing(where)


def thresholds_of(part: Mapping[str, Any]) -> list[str]:
    """Of `python -m benchmarks.thresholds`: where threads begin to pay."""
    facts = ", ".join(f"{name} {value}" for name, value in part["conditions"].items() if value is not None)
    lines = [f"Conditions: {facts}.", ""]
    lines += ["## One thread or all: speed of all threads over one, by number of elements", ""]
    lines += table(["kernel", *(f"2^{size.bit_length() - 1}" for size in part["sizes"]), "break-even", "grain"])
    for row in part["kernels"]:
        ratios = [f"{ratio:.2f}" for ratio in row["ratios"]]
        lines.append(line([row["kernel"], *ratios, str(row["break_even"]), str(row["grain"])]))
    narrow = part["layer_norm"]
    lines += ["", "## LayerNorm: speed of two passes over Welford's one, by number of columns, bf16", ""]
    lines += table(["columns", *map(str, narrow["columns"])])
    return [*lines, line(["ratio", *(f"{ratio:.2f}" for ratio in narrow["ratios"])])]


def _kind(isa: str, found: dict[str, Row]) -> str:
    part, row = next(iter(found.values()))
    return f"{KINDS[isa]} ({part['conditions']['cpu']}, {step_rows.side(row, OURS)['precision']})"


def _gain(found: Row | None) -> str:
    return NOT_MEASURED if found is None else gains(found[1])


def gains(row: Mapping[str, Any]) -> str:
    """Over stock default and, in brackets, over stock at its best."""
    default, best = side_if(row, STOCK_DEFAULT), f"{gain_over(row, STOCK_BEST).median:.2f}x"
    if default is None:
        return f"stock default {DIED} ({best})"
    same = step_rows.best(row) is default
    over = f"{gain_over(row, STOCK_DEFAULT).median:.2f}x"
    return f"**{over}** ({'no option was faster' if same else best})"


def _cores_and_torch(part: dict[str, Any]) -> str:
    facts = part["conditions"]
    return f"{facts['usable_cores']} cores, torch {facts['torch'].partition('+')[0]}"


def _among(texts: Iterable[str]) -> str:
    """Each once."""
    return " and ".join(sorted(set(texts)))
