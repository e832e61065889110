"""The mechanisms by name, in the order in which they are asked. README.md says what each is for and what it earns."""

import os
from collections.abc import Collection

MECHANISMS = {
    "lazy_logits": "a large head gives logits that are computed only if somebody looks",
    "class_swap": "a module of torch.nn gets our class, a subclass of its own",
    "probes": "a module that was found to compute a known formula gets our forward",
    "fusion": "operations that follow each other in a module's own code become one",
    "function_mode": "functions of torch that the model calls are answered by our ops while it runs",
    "tied_gradients": "a head tied to an embedding hands its gradient over instead of adding a second table",
    "overlap": "weight gradients are computed beside the rest of backward",
}
VARIABLE = "FULLSTRIDE_WITHOUT"


def wished(without: Collection[str]) -> frozenset[str]:
    """What is to be left out: as asked for, and by the environment."""
    asked = [without] if isinstance(without, str) else without
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    for who, names in (("prepare: without", asked), (VARIABLE, named)):
        unknown = [name for name in names if name not in MECHANISMS]
        if unknown:
            raise ValueError(f"{who}: expected names of {', '.join(MECHANISMS)}; got {unknown[0]!r}")
    return frozenset((*asked, *named))
