"""Rows of suite steps: which is the newest of a model, its sides, and how many times as fast ours is."""

from collections.abc import Mapping
from typing import Any

from .result_files import File, Spread, newest, rows, spread
from .suites import name_of_step

OURS, STOCK_DEFAULT, STOCK_BEST = "fullstride auto", "stock default", "stock at its best"
_TITLES = {
    "mlp": "MLP, 50 M parameters, batch 128",
    "mlp accumulate 8": "the same MLP, 8 micro-batches a step",
    "llama 4 x 256": "Llama, 110 M, 4 x 256 tokens",
    "llama 1 x 1024": "the same Llama, 1 x 1024 tokens",
    "bert": "BERT-base-sized, 110 M, 8 x 128 tokens",
    "fastspeech2": "FastSpeech 2, 10 M, 16 sentences",
    "clip 12": "CLIP, 75 M, 12 pairs of 224 x 224",
    "clip 64": "the same CLIP, 64 pairs",
}
MODELS = tuple(_TITLES)
Row = tuple[dict[str, Any], dict[str, Any]]  # a part and one of its results


def title(name: str) -> str:
    return _TITLES.get(name, name)


def newest_steps(file: File | None) -> dict[str, Row]:
    """By name_of_step()."""
    by_name: dict[str, list[Row]] = {}
    for part, row in rows(file):
        by_name.setdefault(name_of_step(row), []).append((part, row))
    return {name: newest(found) for name, found in by_name.items()}


def side(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(side for side in row["sides"] if side["name"] == name)
    return found


def side_if(row: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """None if its process died."""
    return next((side for side in row["sides"] if side["name"] == name), None)


def best(row: Mapping[str, Any]) -> dict[str, Any]:
    """Stock PyTorch at its best, which may be the default."""
    return side(row, next(r["peer_side"] for r in row["ratios"] if r["peer"] == STOCK_BEST))


def gain_over(row: Mapping[str, Any], peer: str) -> Spread:
    return spread(next(r["ratio"] for r in row["ratios"] if (r["ours"], r["peer"]) == (OURS, peer)))


def units_per_second(found: Mapping[str, Any]) -> Spread | None:
    """Of a side: samples, tokens, frames or pairs. None where nobody recorded how many a step has."""
    units = found.get("facts", {}).get("units")
    return None if units is None else spread([1e3 * units / ms for ms in found["milliseconds"]])
