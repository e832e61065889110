"""The kernel benchmark as text, line by line as it is measured, and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .benchmark import Result

LEGEND = """\
time of one call, median; ratio: how many times faster than the peer, median [lowest..highest] of the rounds;
portable: the same call of the kernel as any CPU can run it, without the instructions that this one has;
GB/s: bytes that must move, and their share of what the machine reaches with the same mix of reads and writes, where
they do not fit into a cache; GFLOP/s: a multiplication and an addition are two, as fullstride.flops() counts them, and
the share of what square products of the same precision reach by torch; parameters/s: what an optimizer updates"""


def lines(result: Result) -> list[str]:
    """One line for the kernel and its first peer, one more for each other peer."""
    own = f"  {result.case:<56} {result.milliseconds:>9.3f} ms"
    peers = [peer.against(peer.name) for peer in result.peers]
    peers += [f"{name}: left out, {why}" for name, why in result.left_out.items()]
    first, *others = peers or [""]
    text = f"{own}  {first:<62} {_rates(result)}".rstrip()
    return [text, *(f"{'':<{len(own)}}  {peer}" for peer in others)]


def missed(results: list[Result]) -> list[str]:
    """Every target that was not met, as a sentence."""
    found = []
    for result in results:
        for peer in result.peers:
            if peer.met is False:
                found.append(f"{result.op}, {result.case}: {peer.ratio} {peer.name}, target {peer.target:g}x")
        if result.met_share is False and result.share_of_bandwidth:
            share = f"{result.share_of_bandwidth.median:.0%} of {result.mix} bandwidth"
            found.append(f"{result.op}, {result.case}: {share}, target {result.target_share:.0%}")
    return found


def as_json(conditions: Mapping[str, Any], results: list[Result]) -> dict[str, Any]:
    """{conditions, results: [{op, case, milliseconds, peers: [{..., met}], ..., met_share}], missed: [sentence]}."""
    entries = []
    for result in results:
        share = result.share_of_bandwidth
        entry = asdict(result) | {"met_share": result.met_share, "share_of_bandwidth": share and share._asdict()}
        entry["peers"] = [asdict(peer) | {"met": peer.met, "ratio": peer.ratio._asdict()} for peer in result.peers]
        entries.append(entry)
    return {"conditions": dict(conditions), "results": entries, "missed": missed(results)}


def _rates(result: Result) -> str:
    """What is done in a second, in the units of the row."""
    found = [_products(result), _parameters(result), _bandwidth(result)]
    return "; ".join(rate for rate in found if rate)


def _products(result: Result) -> str:
    if result.gflops is None:
        return ""
    share = "" if result.share_of_peak is None else f", {result.share_of_peak:.0%} of {result.precision} peak"
    return f"{result.gflops:.1f} GFLOP/s{share}"


def _parameters(result: Result) -> str:
    rate = result.parameters_per_second
    return "" if rate is None else f"{rate / 1e9:.2f} G parameters/s"


def _bandwidth(result: Result) -> str:
    if result.gigabytes_per_second is None:
        return ""
    text, share = f"{result.gigabytes_per_second:.1f} GB/s", result.share_of_bandwidth
    if share is not None:
        text += f", {share.median:.0%} of {result.mix}"
    if result.target_share is None:
        return text
    return f"{text}  target {result.target_share:.0%} {'met' if result.met_share else 'MISSED'}"
