"""Results as tables in Markdown. Each function makes the lines of one block of a document (render.py)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .result_files import ROOT, File, Spread, commit_of, date_of, newest, rows, spread
from .suites import gone, name_of_step

STOCK_DEFAULT, STOCK_BEST = "stock default", "stock at its best"
KINDS = {"avx512_bf16": "AVX512-BF16", "avx2": "AVX2 only", "amx": "AMX"}  # of CPUs, as README shows them
MODELS = {
    "mlp": "MLP, 50 M parameters, batch 128",
    "mlp accumulate 8": "the same MLP, 8 micro-batches a step",
    "llama 4 x 256": "Llama, 110 M, 4 x 256 tokens",
    "llama 1 x 1024": "the same Llama, 1 x 1024 tokens",
    "bert": "BERT-base-sized, 110 M, 8 x 128 tokens",
    "fastspeech2": "FastSpeech 2, 10 M, 16 sentences",
    "clip 12": "CLIP, 75 M, 12 pairs of 224 x 224",
    "clip 64": "the same CLIP, 64 pairs",
}
NOT_MEASURED, DIED = "not measured yet", "died"
Row = tuple[dict[str, Any], dict[str, Any]]  # a part and one of its results


def find(files: list[File], suite: str, isa: str) -> File | None:
    """The newest file of the suite from a CPU with these instructions."""
    found = [file for file in files if file.suite == suite and file.machine.endswith(f"-{isa}")]
    return max(found, key=lambda file: max(date_of(part) for part in file.parts), default=None)


def gain(files: list[File]) -> list[str]:
    """README's table: how many times as fast a step is, by kind of CPU."""
    all_kinds = {isa: newest_steps(find(files, "steps", isa)) for isa in KINDS}
    missing = [f"On CPUs with {KINDS[isa]} nothing was measured yet." for isa, found in all_kinds.items() if not found]
    steps = {isa: found for isa, found in all_kinds.items() if found}
    if not steps:
        return missing
    lines = table(["model", *(_kind(isa, found) for isa, found in steps.items())])
    for name, title in MODELS.items():
        lines.append(_line([title, *(_gain(found.get(name)) for found in steps.values())]))
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


def newest_steps(file: File | None) -> dict[str, Row]:
    by_name: dict[str, list[Row]] = {}
    for part, row in rows(file):
        by_name.setdefault(name_of_step(row), []).append((part, row))
    return {name: newest(found) for name, found in by_name.items()}


def steps(files: list[File], isa: str) -> list[str]:
    """Milliseconds, gains with their spread, share of the peak, memory."""
    found = newest_steps(find(files, "steps", isa))
    lines = table([
        "model", "Fullstride", "stock default", "stock at its best", "gain over default", "gain over its best",
        "share of peak", "most memory, ours / default", "commit, date, load",
    ])  # fmt: skip
    for name, (part, row) in found.items():
        ours, default, best = _side(row, "fullstride auto"), _side_if(row, STOCK_DEFAULT), _best(row)
        share = "" if ours["share_of_peak"] is None else f"{ours['share_of_peak']:.0%} {ours['precision']}"
        memory = f"{ours['peak_bytes'] >> 20} / {DIED if default is None else default['peak_bytes'] >> 20} MiB"
        best_time = "as it comes" if best is default else f"{_ms(best)} ({best['name'].partition('(')[2][:-1]})"
        lines.append(_line([
            f"{MODELS[name]}, {len(ours['milliseconds'])} rounds", _ms(ours),
            DIED if default is None else _ms(default), best_time,
            DIED if default is None else f"**{_ratio(_gain_over(row, STOCK_DEFAULT))}**",
            _ratio(_gain_over(row, STOCK_BEST)),
            share.replace("%", " %"), memory, _taken(part),
        ]))  # fmt: skip
    older = [(part, row) for part, row in rows(find(files, "steps", isa)) if found[name_of_step(row)][1] is not row]
    for part, row in older:
        over = [_ratio(_gain_over(row, peer)) for peer in (STOCK_DEFAULT, STOCK_BEST)]
        told = f"{over[0]} over default, {over[1]} over its best"
        lines += ["", f"An older take of {MODELS[name_of_step(row)]}: {told} ({_taken(part)})."]
    return lines


def losses(files: list[File], isa: str) -> list[str]:
    """Largest relative difference of a loss to stock default's at the same step."""
    lines = table(["model", "steps", "side", "largest difference"])
    for name, (_, row) in newest_steps(find(files, "steps", isa)).items():
        for side, value in row["loss_differences"].items():
            lines.append(_line([MODELS[name], str(row["num_losses"]), side, f"{value:.1e}"]))
    return lines


def kernels(files: list[File], suite: str, isa: str, root: Path = ROOT) -> list[str]:
    """Times and ratios of every op that there still is."""
    lines = table(["kernel", "case", "ms", "times as fast as", "GB/s, share of the bandwidth", "commit"])
    for part, row in rows(find(files, suite, isa)):
        if gone(row["op"], root):
            continue
        peers = "; ".join(f"{peer['name']} {_ratio(spread(peer['ratio']))}" for peer in row["peers"])
        share, moved = row["share_of_bandwidth"], ""
        if share:
            moved = f"{row['gigabytes_per_second']:.1f} GB/s, {share['median']:.0%} of {row['mix']}".replace("%", " %")
        time = _number(row["milliseconds"])
        lines.append(_line([row["op"], row["case"], f"{time} ms", peers, moved, _commit(part)]))
    return lines


def trainer(files: list[File], isa: str) -> list[str]:
    file = find(files, "trainer", isa)
    lines = table(["what the trainer costs", "median [lowest..highest] of the rounds"])
    for part in file.parts if file else ():
        for side, title in (("bare", "a step of a bare loop"), ("trainer", "a step of the trainer")):
            lines.append(_line([title, _spread(spread(part["step_ms_medians"][side]), 0, " ms")]))
        for name, title in (("overhead", "longer by"), ("data_share", "share of time spent waiting for data")):
            lines.append(_line([title, _spread(spread([100 * value for value in part[name]]), 2, " %")]))
        lines.append(_line(["from the imports to the first step", _spread(spread(part["start_up_seconds"]), 2, " s")]))
        lines.append(_line(["taken", _taken(part)]))
    return lines


def curves(files: list[File], isa: str) -> list[str]:
    """Sides of the curves, one run each; no spread."""
    file = find(files, "llama_curves", isa)
    lines = table(["recipe", "side", "steps", "time", "speed", "last validation loss", "most memory", "taken"])
    for part in file.parts if file else ():
        for side in part["sides"]:
            last = side["points"][-1]
            lines.append(_line([
                part["recipe"], side["name"], str(side["steps"]), f"{side['seconds']:.0f} s",
                f"{side['units_per_second']:.0f} {side['unit']}/s", f"{last['loss']:.3f} at step {last['step']}",
                f"{side['peak_bytes'] >> 20} MiB", _taken(part),
            ]))  # fmt: skip
    return lines


def profile(files: list[File], isa: str) -> list[str]:
    file = find(files, "llama_profile", isa)
    lines = table(["part of a step", "time", "share", "what the machine needs"])
    for part in file.parts if file else ():
        for name, found in sorted(part["parts"].items(), key=lambda item: -item[1]["ms"]):
            needs = f"{_number(found['needs_ms'])} ms" if found["needs_ms"] else ""
            lines.append(_line([name, f"{_number(found['ms'])} ms", f"{100 * found['share']:.1f} %", needs]))
        whole = f"{part['step_ms']:.0f} ms, under the profiler {part['profiled_step_ms']:.0f} ms"
        lines += ["", f"A step: {whole}; {part['precision']}, one run ({_taken(part)})."]
    return lines


def speech_profile(files: list[File], isa: str) -> list[str]:
    file = find(files, "fastspeech2_profile", isa)
    return speech_profile_of(file.parts[-1]) if file else [f"On CPUs with {KINDS[isa]} nothing was taken yet."]


def speech_profile_of(part: Mapping[str, Any]) -> list[str]:
    """Of `python -m benchmarks.fastspeech2_profile`: parts, phases, memory, and what 200 epochs would take."""
    sides = part["sides"]
    names = [side["name"] for side in sides]
    lines = table(["part, batch 16, forward + backward", "GFLOP", *names])
    for name, flops in part["gflop"].items():
        times = [f"{_median_ms(side['forward_ms'][name])} + {_median_ms(side['backward_ms'][name])}" for side in sides]
        lines.append(_line([name, f"{flops['forward']:.2f} + {flops['backward']:.2f}", *times]))
    lines += ["", *table(["batch 16", *names])]
    for name in sides[0]["phases_ms"]:
        lines.append(_line([name, *(_spread(spread(side["phases_ms"][name]), 0, " ms") for side in sides)]))
    speeds = [_spread(spread(side["units_per_second"]), 0, "") for side in sides]
    lines.append(_line(["mel frames a second", *speeds]))
    for name in sides[0]["memory"]:
        title = f"memory of {name.removesuffix('_bytes')}"
        lines.append(_line([title, *(f"{side['memory'][name] >> 20} MiB" for side in sides)]))
    for name in sides[0]["peaks"]:
        title = f"most memory of the process, batch {name}"
        lines.append(_line([title, *(f"{side['peaks'][name]['peak_bytes'] >> 20} MiB" for side in sides)]))
    hours = [_spread(spread(side["hours"]), 0, " h") for side in sides]
    lines.append(_line(["200 epochs of a 24-hour corpus, 16 x 2, estimated", *hours]))
    return [*lines, "", f"Median [lowest..highest] of {part['rounds']} rounds; parts: medians ({_taken(part)})."]


def clip_profile(files: list[File], isa: str) -> list[str]:
    file = find(files, "clip_profile", isa)
    return clip_profile_of(file.parts[-1]) if file else [f"On CPUs with {KINDS[isa]} nothing was taken yet."]


def clip_profile_of(part: Mapping[str, Any]) -> list[str]:
    """Of `python -m benchmarks.clip_profile`: milliseconds of a step by kind of operation."""
    sides = [side for side in part["sides"] if "failed" not in side]
    lines = table([part["model"], *(f"{side['name']} ({side['precision']})" for side in sides)])
    for kind in sides[0]["kinds_ms"]:
        lines.append(_line([kind, *(_median_ms(side["kinds_ms"][kind]) for side in sides)]))
    for title, name in (("all, under the profiler", "profiled_ms"), ("a step without it", "step_ms")):
        lines.append(_line([title, *(_spread(spread(side[name]), 0, " ms") for side in sides)]))
    failed = [f"{side['name']}: {side['failed']}." for side in part["sides"] if "failed" in side]
    return [*lines, "", " ".join([f"Medians of {part['rounds']} rounds ({_taken(part)}).", *failed])]


def mechanisms(files: list[File], isa: str) -> list[str]:
    """How many times as fast a step is with a mechanism than without, by model."""
    found = [row for _, row in rows(find(files, "mechanisms", isa))]
    models = list(dict.fromkeys(row["model"] for row in found))
    lines = table(["mechanism", *models])
    for name in dict.fromkeys(row["mechanism"] for row in found):
        gains = {row["model"]: _spread(spread(row["gain"]), 3, "x") for row in found if row["mechanism"] == name}
        lines.append(_line([f"`{name}`", *(gains.get(model, NOT_MEASURED) for model in models)]))
    file = find(files, "mechanisms", isa)
    for part in file.parts if file else ():
        lines += ["", f"Taken on {part['conditions']['cpu']} ({KINDS[isa]}), {_taken(part)}."]
    return lines


def thresholds(files: list[File], isa: str) -> list[str]:
    file = find(files, "thresholds", isa)
    return thresholds_of(file.parts[-1]) if file else [f"On CPUs with {KINDS[isa]} nothing was taken yet."]


def thresholds_of(part: Mapping[str, Any]) -> list[str]:
    """Of `python -m benchmarks.thresholds`: where threads begin to pay."""
    facts = ", ".join(f"{name} {value}" for name, value in part["conditions"].items() if value is not None)
    lines = [f"Conditions: {facts}.", ""]
    lines += ["## One thread or all: speed of all threads over one, by number of elements", ""]
    lines += table(["kernel", *(f"2^{size.bit_length() - 1}" for size in part["sizes"]), "break-even", "grain"])
    for row in part["kernels"]:
        ratios = [f"{ratio:.2f}" for ratio in row["ratios"]]
        lines.append(_line([row["kernel"], *ratios, str(row["break_even"]), str(row["grain"])]))
    narrow = part["layer_norm"]
    lines += ["", "## LayerNorm: speed of two passes over Welford's one, by number of columns, bf16", ""]
    lines += table(["columns", *map(str, narrow["columns"])])
    return [*lines, _line(["ratio", *(f"{ratio:.2f}" for ratio in narrow["ratios"])])]


def table(head: list[str]) -> list[str]:
    return [_line(head), "|---" * len(head) + "|"]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _kind(isa: str, found: dict[str, Row]) -> str:
    part, row = next(iter(found.values()))
    return f"{KINDS[isa]} ({part['conditions']['cpu']}, {_side(row, 'fullstride auto')['precision']})"


def _gain(found: Row | None) -> str:
    if found is None:
        return NOT_MEASURED
    default, best = _side_if(found[1], STOCK_DEFAULT), f"{_gain_over(found[1], STOCK_BEST).median:.2f}x"
    if default is None:
        return f"stock default {DIED} ({best})"
    same = _best(found[1]) is default
    over = f"{_gain_over(found[1], STOCK_DEFAULT).median:.2f}x"
    return f"**{over}** ({'no option was faster' if same else best})"


def _gain_over(row: dict[str, Any], peer: str) -> Spread:
    return spread(next(r["ratio"] for r in row["ratios"] if (r["ours"], r["peer"]) == ("fullstride auto", peer)))


def _side(row: dict[str, Any], name: str) -> dict[str, Any]:
    return next(side for side in row["sides"] if side["name"] == name)


def _side_if(row: dict[str, Any], name: str) -> dict[str, Any] | None:
    """None if its process died."""
    return next((side for side in row["sides"] if side["name"] == name), None)


def _best(row: dict[str, Any]) -> dict[str, Any]:
    return _side(row, next(r["peer_side"] for r in row["ratios"] if r["peer"] == STOCK_BEST))


def _cores_and_torch(part: dict[str, Any]) -> str:
    facts = part["conditions"]
    return f"{facts['usable_cores']} cores, torch {facts['torch'].partition('+')[0]}"


def _among(texts: Iterable[str]) -> str:
    """Each once."""
    return " and ".join(sorted(set(texts)))


def _taken(part: Mapping[str, Any]) -> str:
    return f"{_commit(part)}, {date_of(part)}, load {part['conditions']['load']:g}"


def _commit(part: Mapping[str, Any]) -> str:
    return commit_of(part)[:7]


def _ms(side: dict[str, Any]) -> str:
    return _spread(spread(side["milliseconds"]), 0, " ms")


def _median_ms(values: list[float]) -> str:
    return f"{_number(spread(values).median)} ms"


def _ratio(value: Spread) -> str:
    return _spread(value, 2, "x")


def _spread(value: Spread, digits: int, unit: str) -> str:
    median = f"{value.median:.{digits}f}{unit}"
    if value.lowest is None or value.highest is None:
        return median
    return f"{median} [{value.lowest:.{digits}f}..{value.highest:.{digits}f}]"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
