"""The kernel benchmark as text, line by line as it is measured, and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .benchmark import Result

LEGEND = """\
time of one call, median; ratio: how many times faster than the peer, median [lowest..highest] of the rounds;
GB/s: bytes that must move, and their share of what the machine reaches with the same mix of reads and writes"""


def lines(result: Result) -> list[str]:
    """One line for the kernel and its first peer, one more for each other peer."""
    own = f"  {result.case:<56} {result.milliseconds:>9.3f} ms"
    peers = [peer.against(peer.name) for peer in result.peers] or [""]
    first = f"{own}  {peers[0]:<62} {_bandwidth(result)}".rstrip()
    return [first, *(f"{'':<{len(own)}}  {peer}" for peer in peers[1:])]


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


def _bandwidth(result: Result) -> str:
    share = result.share_of_bandwidth
    if share is None:
        return ""
    text = f"{result.gigabytes_per_second:5.1f} GB/s, {share.median:.0%} of {result.mix}"
    if result.target_share is None:
        return text
    return f"{text}  target {result.target_share:.0%} {'met' if result.met_share else 'MISSED'}"
