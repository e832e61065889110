"""What can be tried on this machine, and what memory it will take: a process that trains nothing.

Run as `python -m fullstride.studies.tune.estimates WISH`, with {"config": YAML} as JSON. It writes a line of facts:

    {"threads": that the config comes to, "precision", "cores",
     "precisions": {name: {"trouble": why it cannot be used, or nothing, "gflops": of products, as measured}},
     "micro_batch_matters": why another micro-batch would be another training, or null,
     "processes_matter": the same of another number of processes,
     "can_cut": whether processes can share a micro-batch, "regions": [NUMA nodes, sockets]}

then answers {"micro_batch", "accumulate", "precision", "processes"} with {"bytes": the most that training will hold, by
dry_run}. Of several processes each holds all of model, optimizer and data; only the first writes checkpoints.
"""

import json
import sys
from typing import Any, TextIO

import torch

from ...backends import choosing
from ...data.sharing import Share
from ...machine import cpu, placement, threads
from ...recipes import config_files
from ...recipes.config import Config
from ...train import dry_run
from .answering import answer_by

_ISLANDS = "with distributed.local_steps each process, or each machine, has weights of its own for a while"
_PRECISIONS = ("fp32", "bf16", "fp16")


def estimate(wish: dict[str, Any], out: TextIO) -> None:
    config = config_files.from_yaml(wish["config"]).located()
    threads.set_threads(config.threads)
    task = config.task()
    facts = {
        "threads": torch.get_num_threads(), "cores": cpu.describe().num_usable_cores,
        "precision": choosing.choose(config.precision).precision,
        "precisions": {name: _look(name) for name in _PRECISIONS},
        "micro_batch_matters": task.micro_batch_matters, "can_cut": task.can_cut, "regions": placement.regions(),
        "processes_matter": _ISLANDS if config.distributed.local_steps else None,
    }  # fmt: skip
    print(json.dumps(facts), file=out)
    process = None
    for line in sys.stdin:
        found = _estimate(config, request := json.loads(line))
        process = process or found["process"]  # of the first: to estimate takes some memory that stays
        every = sum(found.values()) - found["process"] + process
        others = (request["processes"] - 1) * (every - found["checkpoint"])
        print(json.dumps({"bytes": every + others}), file=out)


def _estimate(config: Config, request: dict[str, Any]) -> dict[str, int]:
    """Bytes of each process, by what they are for."""
    share = Share(request["processes"], 0, request["accumulate"])
    micro_batch = request["micro_batch"] // share.parts
    return dry_run.memory_of(
        config.replace(micro_batch=micro_batch, accumulate=share.micros, precision=request["precision"])
    )


def _look(precision: str) -> dict[str, Any]:
    try:
        return {"trouble": "", "gflops": choosing.choose(precision).gflops(precision)}
    except ValueError as error:
        return {"trouble": str(error), "gflops": 0.0}


if __name__ == "__main__":
    sys.exit(answer_by(estimate))
