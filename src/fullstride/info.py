"""`fullstride info`: what the machine is, what torch brings, which kernels are chosen, and what they can reach.

collect() gives, all sizes in bytes:

    fullstride  version, commit
    cpu         model, architecture
    features    instruction set -> whether the CPU has it
    cores       logical, physical, threads_per_core, affinity, quota (null: none), usable, load (of the last minute)
    caches      list of level, kind, bytes, num_sharing, num_instances
    numa        list of number, cpus, memory_bytes
    memory      total, limit (by cgroup, null: none), huge_pages, allocator, resident, peak, status (lines)
    kernels     library (null: none), isas (variant -> whether it runs here), isa (the one chosen)
    torch       version, blas, onednn, cpu_capability, openmp (runtimes mapped), threads
    products    precision that "auto" takes, reason, backends, rates, verdicts, notes (see backends/choosing.py); null
                when not measured yet
    onednn      what limits it, and why; empty when nothing does
    measured    gflops (by precision), gigabytes_per_second (by mix: see machine/streams.py); absent when not asked for
"""

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from . import __version__, _native, _source
from .backends import choosing, square_products
from .backends.trials import verdicts
from .machine import cpu, memory, onednn, streams
from .machine.memory import as_size


def collect(measure: bool = True) -> dict[str, Any]:
    machine = cpu.describe()
    isas = _native.isas()  # loads the library, so that what it maps is seen below
    facts: dict[str, Any] = {
        "fullstride": {"version": __version__, "commit": _source.commit()},
        "cpu": {"model": machine.model, "architecture": machine.architecture},
        "features": machine.features,
        "cores": {
            "logical": machine.num_logical, "physical": machine.num_physical,
            "threads_per_core": machine.threads_per_core, "affinity": machine.num_affinity,
            "quota": machine.quota, "usable": machine.num_usable, "load": round(os.getloadavg()[0], 1),
        },
        "caches": [asdict(cache) for cache in machine.caches],
        "numa": [asdict(node) for node in machine.nodes],
        "memory": {
            "total": machine.memory_bytes, "limit": machine.memory_limit_bytes, "huge_pages": memory.huge_pages(),
            "allocator": memory.allocator(), "resident": memory.resident_bytes(), "peak": memory.peak_bytes(),
            "status": memory.status(),
        },
        "kernels": {
            "library": _native.library()._name if isas else None, "isas": isas, "isa": _native.isa(),
        },
        "torch": {
            "version": torch.__version__, **torch_build(torch.__config__.show()),
            "openmp": openmp_runtimes(), "threads": torch.get_num_threads(),
        },
    }  # fmt: skip
    facts["onednn"] = onednn.describe()
    chosen = choosing.describe(measure)
    facts["kernels"]["isa"] = _native.isa()  # which that may have changed
    facts["products"] = None if chosen is None else asdict(chosen)
    if measure:
        facts["measured"] = {
            "gflops": square_products.rates(),
            "gigabytes_per_second": {mix: streams.bandwidth(mix) for mix in streams.MIXES},
        }
    return facts


def torch_build(config: str) -> dict[str, str]:
    """BLAS, oneDNN and vector width from the text of torch.__config__.show()."""

    def find(pattern: str) -> str | None:
        match = re.search(pattern, config)
        return match[1] if match else None

    blas = find(r"BLAS_INFO=(\w+)") or "unknown"
    version = find(r"Math Kernel Library Version ([\d.]+)") if blas == "mkl" else None
    return {
        "blas": f"{blas} {version}" if version else blas,
        "onednn": find(r"MKL-DNN v([\d.]+)") or find(r"oneDNN v([\d.]+)") or "none",
        "cpu_capability": find(r"CPU capability usage: (\S+)") or "unknown",
    }


def openmp_runtimes() -> list[str]:
    """The OpenMP libraries in this process. More than one would mean two thread pools fighting for the cores."""
    return [path for path in memory.mapped_libraries() if re.match(r"lib(gomp|i?omp)", Path(path).name)]


def as_text(facts: dict[str, Any]) -> str:
    """The facts as aligned lines."""
    return "\n".join(f"{label:<12} {text}" for label, text in _lines(facts))


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    cores, store, kernels, engine = facts["cores"], facts["memory"], facts["kernels"], facts["torch"]
    quota = "no quota" if cores["quota"] is None else f"{cores['quota']:g} by cgroup quota"
    lines = [
        ("fullstride", f"{facts['fullstride']['version']} ({facts['fullstride']['commit']})"),
        ("CPU", f"{facts['cpu']['model']}, {facts['cpu']['architecture']}"),
        ("features", _features(facts["features"])),
        ("cores", f"{cores['usable']} usable: {cores['affinity']} by affinity, {quota}"),
        ("", f"{cores['logical']} logical, {cores['physical']} physical, {cores['threads_per_core']} a core"),
        ("", f"load {cores['load']}: measured rates are those of an idle machine only where this is near 0"),
    ]
    for i, cache in enumerate(facts["caches"]):
        label = f"L{cache['level']}{'d' if cache['kind'] == 'data' else ''}"
        sharing = f", each shared by {cache['num_sharing']} CPUs" if cache["num_sharing"] > 1 else ""
        size = as_size(cache["bytes"])
        lines.append(("" if i else "caches", f"{label:<3} {cache['num_instances']} x {size}{sharing}"))
    for i, node in enumerate(facts["numa"]):
        text = f"node {node['number']}: {len(node['cpus'])} CPUs, {as_size(node['memory_bytes'])}"
        lines.append(("" if i else "NUMA", text))
    limit = "" if store["limit"] is None else f", {as_size(store['limit'])} allowed by cgroup"
    lines += [
        ("memory", f"{as_size(store['total'])}{limit}"),
        ("", f"huge pages {store['huge_pages'] or 'unknown'}, {store['allocator']}"),
        *(("", line) for line in store["status"]),
        ("kernels", _kernels(kernels)),
        ("torch", f"{engine['version']}, BLAS {engine['blas']}, oneDNN {engine['onednn']}, {engine['cpu_capability']}"),
        ("", f"{engine['threads']} threads, OpenMP {', '.join(Path(x).name for x in engine['openmp']) or 'unknown'}"),
        *([("", facts["onednn"])] if facts["onednn"] else []),
    ]
    chosen = facts["products"]
    unknown = "not measured on this machine yet; leave --no-measure out"
    lines.append(("precision", f"auto takes {chosen['precision']}: {chosen['reason']}" if chosen else unknown))
    lines += _products(choosing.Choice(**chosen)) if chosen else []
    if "measured" in facts:
        lines += _measured(facts["measured"])
    return lines


def _products(chosen: choosing.Choice) -> list[tuple[str, str]]:
    lines = [*chosen.lines(), *(f"rates {note}" for note in chosen.notes)]
    bad = verdicts.lines(chosen.verdicts)
    tried = [*bad, f"{len(chosen.verdicts) - len(bad)} of {len(chosen.verdicts)} candidates are fine"]
    return [
        *(("" if i else "products", line) for i, line in enumerate(lines)),
        *(("" if i else "tried", line) for i, line in enumerate(tried)),
    ]


def _measured(measured: dict[str, Any]) -> list[tuple[str, str]]:
    gflops = ", ".join(f"{name.replace('_', ' ')} {rate:.1f}" for name, rate in measured["gflops"].items())
    rates = ", ".join(f"{mix} {rate:.1f}" for mix, rate in measured["gigabytes_per_second"].items())
    return [("GFLOP/s", f"{gflops} (matrix products)"), ("GB/s", f"{rates} (beyond the last-level cache)")]


def _features(features: dict[str, bool]) -> str:
    have = [name for name, present in features.items() if present]
    lack = [name for name, present in features.items() if not present]
    return f"{' '.join(have) or 'none known'}{'; without ' + ' '.join(lack) if lack else ''}"


def _kernels(kernels: dict[str, Any]) -> str:
    if kernels["library"] is None:
        return "none: the torch references serve instead"
    built = ", ".join(name + ("" if able else " (not on this CPU)") for name, able in kernels["isas"].items())
    return f"{kernels['isa']} chosen of {built}"
