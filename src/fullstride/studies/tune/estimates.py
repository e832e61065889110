"""What can be tried on this machine, and what memory it will take: a process that trains nothing.

Run as `python -m fullstride.studies.tune.estimates WISH`, with {"config": YAML} as JSON. It writes a line of facts:

    {"threads": that the config comes to, "precision", "cores",
     "precisions": {name: {"trouble": why it cannot be used, or nothing, "gflops": of products, as measured}},
     "micro_batch_matters": why another micro-batch would be another training, or null}

then answers {"micro_batch", "accumulate", "precision"} with {"bytes": the most that training will hold, by dry_run}.
"""

import json
import sys
from typing import Any, TextIO

import torch

from ...backends import choosing
from ...machine import cpu, threads
from ...recipes import config_files
from ...train import dry_run
from .trial import answer_by

_PRECISIONS = ("fp32", "bf16", "fp16")


def estimate(wish: dict[str, Any], out: TextIO) -> None:
    config = config_files.from_yaml(wish["config"]).located()
    threads.set_threads(config.threads)
    facts = {
        "threads": torch.get_num_threads(), "cores": cpu.describe().num_usable_cores,
        "precision": choosing.choose(config.precision).precision,
        "precisions": {name: _look(name) for name in _PRECISIONS},
        "micro_batch_matters": config.task().micro_batch_matters,
    }  # fmt: skip
    print(json.dumps(facts), file=out)
    for line in sys.stdin:
        found = dry_run.estimate(config.replace(**json.loads(line)))
        print(json.dumps({"bytes": found.peak}), file=out)


def _look(precision: str) -> dict[str, Any]:
    try:
        return {"trouble": "", "gflops": choosing.choose(precision).gflops(precision)}
    except ValueError as error:
        return {"trouble": str(error), "gflops": 0.0}


if __name__ == "__main__":
    sys.exit(answer_by(estimate))
