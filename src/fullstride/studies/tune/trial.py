"""A trial of `tune`: a process that trains a config with the real trainer and its data, for as long as it is told.

Run as `python -m fullstride.studies.tune.trial WISH`, with

    {"config": YAML, "run": a new folder, "seconds": how long it trains in all, or null, "processes": 1 if not given}

as JSON. It writes one line of facts when all stands, then answers each line it reads with a line:

    {"train": s, "settle": n, "least": n}   -> {"rates": units a second in up to 8 parts of the time, "steps",
                                                "seconds", "units", "peak": bytes}; the first n steps do not count,
                                                nor those whose data workers have made during the rest
    {"evaluate": 1}                         -> {"loss": of the held-out data, null if not finite, "seconds"}
    {"inter_op": 1}                         -> {"started": whether torch's pool for operations beside each other was};
                                                can be asked once

Of several processes (ranks.py) this is the first, which alone is asked and answers. Units are those of all together,
and the peak is the sum of what each held at most.
"""

import json
import sys

from . import ranks


def main() -> int:
    others = ranks.begin(json.loads(sys.argv[1]))
    # These load torch: when all processes have been started, so that they do it at once, and are pinned.
    from . import turns
    from .answering import answer_by

    return answer_by(turns.train, others)


if __name__ == "__main__":
    sys.exit(main())
