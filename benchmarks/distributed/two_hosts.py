"""Two hosts with a throttled link between them: what a step takes, and what distributed.step_time predicts, for 64 too.

    python -m benchmarks.distributed.two_hosts [--json FILE]

Hosts are network namespaces (tests/distributed/hosts.py), one thread and one core each; links are throttled by tc. Sums
of eight sizes over each link give its effective latency and bandwidth, and the processor time of a byte; steps of two
hosts that know nothing of each other give what is computed; the outer step of islands is what is left of theirs on the
link without a limit. From these the steps of two hosts are predicted, and then measured. Weak scaling: accumulate is
the number of hosts.

For more nodes, each with all cores of this machine: the latency is that of the link without a limit, and the bandwidth
0.94 of the network's (the rest is headers), but no more than sums reached without a limit.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.distributed import hosts

from fullstride.bench import conditions
from fullstride.distributed.step_time import Compute, Link, Sent, buckets, efficiency, fit, predict

from . import runs

FREE = "no limit"
LINKS: dict[str, dict[str, float]] = {
    FREE: {}, "1 Gbit/s": {"mbit": 1000}, "1 Gbit/s, 1 ms": {"mbit": 1000, "delay_ms": 1}, "100 Mbit/s": {"mbit": 100},
}  # fmt: skip
RECIPES = ("llama-char", "mlp-mnist")
AHEAD = ("llama", "mlp", "clip")
NODES = (1, 2, 4, 8, 16, 32, 64)
GIGABITS = (1, 10, 100)
ISLANDS, FEW = 20, 100  # steps between two averages


class Way(NamedTuple):
    fields: tuple[str, ...]
    dtype: str
    local_steps: int = 0


WAYS = {
    "gradients in fp32": Way(("--distributed.gradients", "fp32"), "fp32"),
    "gradients in bf16": Way(("--distributed.gradients", "bf16"), "bf16"),
    f"islands, {ISLANDS} steps": Way(("--distributed.local-steps", str(ISLANDS)), "fp32", ISLANDS),
}
WAYS_AHEAD = {**WAYS, f"islands, {FEW} steps": Way((), "fp32", FEW)}
_STEPS = {"llama-char": (40, 5), "mlp-mnist": (8, 2)}
_GOODPUT = 0.94
_SIZES = [4 << 10 << 2 * i for i in range(8)]  # bytes, 4 KiB to 64 MiB
_PORT = "29500"
_SUMS = """
import json, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
found = {}
for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
    found[name], work = [], 0.0
    for size in json.loads(sys.argv[1]):
        x, times = torch.zeros(size // dtype.itemsize, dtype=dtype), []
        rounds = 4 if size > 1 << 22 else 12
        used = time.process_time()
        for _ in range(rounds):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(x)
            times.append(time.perf_counter() - began)
        used = time.process_time() - used
        found[name].append(sorted(times)[rounds // 2])
    found[name + "_work"] = used / rounds / size  # of the largest; two processes send as much as they have
if dist.get_rank() == 0:
    print(json.dumps(found))
dist.destroy_process_group()
"""


def on_two(pair: Sequence[hosts.Host], words: Sequence[str]) -> str:
    """What a command of torchrun prints on the first of two hosts."""
    processes = []
    for node, host in enumerate(pair):
        launch = [
            "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1",
            "--master-addr", pair[0].address, "--master-port", _PORT, *words,
        ]  # fmt: skip
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        processes.append(host.start(runs.on_core(node, launch), env={"GLOO_SOCKET_IFNAME": host.interface}, **options))
    output, *_ = [process.communicate(timeout=1800)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{' '.join(words)} failed")
    return str(output)


def measured_link(pair: Sequence[hosts.Host], folder: Path) -> tuple[dict[str, Link], dict[str, Any]]:
    """By dtype; and the sums that it was fitted to."""
    script = folder / "sums.py"
    script.write_text(_SUMS)
    found = json.loads(on_two(pair, [str(script), json.dumps(_SIZES)]).splitlines()[-1])
    links = {
        dtype: fit(zip(_SIZES, found[dtype], strict=True), work=found[f"{dtype}_work"]) for dtype in ("fp32", "bf16")
    }
    return links, found


@dataclass
class Known:
    """Of a recipe. outer: seconds of an outer step of islands."""

    compute: Compute
    sizes: list[int]  # numbers of each parameter, in the model's order
    width: int  # bytes of a number in torch's buckets: those of the weights that forward uses
    outer: float = 0.0

    def sent(self, way: Way) -> Sent:
        width = 2 if way.dtype == "bf16" else 4
        filled = tuple(size * width / self.width for size in buckets([self.width * size for size in self.sizes]))
        return Sent(filled, way.local_steps, 4.0 * sum(self.sizes), self.outer)

    def seconds(self, way: Way, link: Link) -> float:
        """Of a step of two hosts."""
        return predict(self.compute, self.sent(way), 2, link).seconds


def beside_another(recipe: str, folder: Path) -> Known:
    """A host that trains by itself on one core, while another one does so, too: both are on this machine and share its
    memory, also when they train together."""
    steps, every = _STEPS[recipe]
    inside = folder / f"beside-{recipe}"
    return _known(recipe, runs.side_by_side(recipe, inside, steps, every), inside / "0")


def alone(recipe: str, folder: Path) -> Known:
    """A host that trains by itself, with all cores there are."""
    run = folder / f"alone-{recipe}"
    runs.run(runs.command(recipe, run))
    return _known(recipe, runs.figures(runs.rows_of(run), runs.STEPS[recipe][1]), run)


def _known(recipe: str, found: runs.Figures, run: Path) -> Known:
    last = found["backward_ms"] / runs.accumulate_of(recipe)  # micro-batch: gradients are sent during that alone
    first = found["forward_ms"] + found["backward_ms"] - last
    compute = Compute(first / 1e3, last / 1e3, (found["step_ms"] - first - last) / 1e3)
    is_bf16 = json.loads((run / "machine.json").read_text())["environment"]["precision"] == "bf16"
    return Known(compute, runs.parameters(run), 2 if is_bf16 else 4)


def together(pair: Sequence[hosts.Host], recipe: str, way: Way, run: Path) -> dict[str, Any]:
    """Milliseconds of a step of two hosts, and what their ranks say they sent and waited."""
    steps, every = (3 * way.local_steps, way.local_steps) if way.local_steps else _STEPS[recipe]
    fields = ("--threads", "1", "--accumulate", "2", *way.fields)
    before = pair[0].sent_bytes()
    on_two(pair, ["-m", *runs.command(recipe, run, *fields, steps=steps, every=every)])
    rows = runs.rows_of(run)
    found = runs.figures(rows, every)
    times = [row["step_ms"] for row in rows]
    return {
        "milliseconds": {"median": found["step_ms"], "lowest": min(times), "highest": max(times)},
        "sent_mb": found["sent_mb"], "exposed_ms": found["exposed_ms"],
        "interface_mb": (pair[0].sent_bytes() - before) / 1e6 / steps,
    }  # fmt: skip


def over_link(name: str, known: dict[str, Known], folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the link, a row for each recipe and way)."""
    rows = []
    with hosts.network(2) as pair:
        pair[0].shape(**LINKS[name])
        fitted, sums = measured_link(pair, folder)
        for recipe, own in known.items():
            for title, way in WAYS.items():
                row: dict[str, Any] = {"link": name, "recipe": recipe, "way": title}
                row |= together(pair, recipe, way, folder / f"run-{len(list(folder.iterdir()))}")
                seconds, link = row["milliseconds"]["median"] / 1e3, fitted[way.dtype]
                if way.local_steps and name == FREE:  # what is left is the outer step; other links are predicted by it
                    own.outer = max(0.0, seconds - own.seconds(way, link)) * way.local_steps
                row["predicted_ms"] = 1e3 * own.seconds(way, link)
                row["error"] = {"share": row["predicted_ms"] / 1e3 / seconds - 1}
                rows.append(row)
                print(as_text(row), flush=True)
    return {**{dtype: vars(link) for dtype, link in fitted.items()}, "sizes": _SIZES, "sums": sums}, rows


def measure(folder: Path) -> dict[str, Any]:
    known = {recipe: beside_another(recipe, folder) for recipe in RECIPES}
    links, rows = {}, []
    for name in LINKS:
        links[name], found = over_link(name, known, folder)
        rows += found
    # Seconds of an outer step, a weight.
    passes = sum(own.outer for own in known.values()) / sum(sum(own.sizes) for own in known.values())
    return {"links": links, "results": rows, "ahead": list(ahead(folder, links[FREE], passes))}


def ahead(folder: Path, free: dict[str, Any], passes: float) -> Iterator[dict[str, Any]]:
    """Efficiencies of more nodes."""
    for recipe in AHEAD:
        own = alone(recipe, folder)
        own.outer = passes * sum(own.sizes)
        for gigabits in GIGABITS:
            for title, way in WAYS_AHEAD.items():
                found = free[way.dtype]
                link = Link(found["latency"], min(_GOODPUT * gigabits * 1e9 / 8, found["bandwidth"]), found["work"])
                shares = [efficiency(own.compute, own.sent(way), nodes, link) for nodes in NODES]
                yield {"recipe": recipe, "gigabits": gigabits, "way": title, "nodes": list(NODES), "share": shares,
                       "alone_ms": 1e3 * own.compute.seconds, "weights_mb": 4e-6 * sum(own.sizes)}  # fmt: skip


def as_text(found: dict[str, Any]) -> str:
    middle = found["milliseconds"]
    return (
        f"{found['link']:<15} {found['recipe']:<11} {found['way']:<18} {middle['median']:8.1f} ms"
        f" [{middle['lowest']:.1f}..{middle['highest']:.1f}], predicted {found['predicted_ms']:8.1f}"
        f" ({100 * found['error']['share']:+.0f}%), {found['sent_mb']:.2f} MB a step"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="two_hosts", description="Two hosts, measured and predicted.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    facts = conditions.conditions()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    if options.json:
        options.json.write_text(json.dumps({"conditions": facts, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
