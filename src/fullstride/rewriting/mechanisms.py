"""The mechanisms by name, in the order in which they are asked, and the parts that each of them can do without.

A mechanism is a way to get something fast into a model, a part is what gets in. Both are switches of prepare(without=).
README.md says what each is for and what it earns.
"""

import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

MECHANISMS = {
    "lazy_logits": "a large head gives logits that are computed only if somebody looks",
    "class_swap": "a module of torch.nn gets our class, a subclass of its own",
    "probes": "a module that was found to compute a known formula gets our forward",
    "fusion": "operations that follow each other in a module's own code become one",
    "function_mode": "functions of torch that the model calls are answered by our ops while it runs",
    "tied_gradients": "a head tied to an embedding hands its gradient over instead of adding a second table",
    "overlap": "weight gradients are computed beside the rest of backward",
}
PARTS = {
    "linear": "linear layers by our op; without it torch's modules multiply, in bf16 under autocast",
    "products": "products of linear layers by whoever was measured to be fastest; without it by torch alone",
    "activations": "an activation with the linear layer or convolution before it, or alone, in one pass",
    "gates": "activation(gate) * up in one pass",
    "residuals": "a sum and the norm behind it in one pass; needs norms",
    "norms": "LayerNorm and RMSNorm, other people's too",
    "attention": "attention that never writes down its weights, and softmax where it is spelt out",
    "rotary": "rotary positions in one pass",
    "loss": "cross-entropy and the contrastive loss, where the model or a module computes them",
    "embedding": "look-ups whose backward touches the rows that were looked up",
    "dropout": "dropout that keeps no mask",
    "convolutions": "convolutions as products",
    "optimizer": "one call a step that clips, too; without it the optimizer stays the one that was given",
    "threads": "one a usable core, denormals flushed; without it they stay as torch has them",
}
"""What `without` takes besides: of what the mechanisms put in place, and of the process."""
SWITCHES = MECHANISMS | PARTS
VARIABLE = "FULLSTRIDE_WITHOUT"


class Answer(NamedTuple):
    """Of a mechanism, for one module: what was done, or why nothing was, and of which parts that is.

    All empty if the mechanism does not know the module.
    """

    done: str = ""
    left: str = ""
    parts: tuple[str, ...] = ()


def wished(without: Collection[str]) -> frozenset[str]:
    """What is to be left out: as asked for, and by the environment."""
    asked = [without] if isinstance(without, str) else without
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    for who, names in (("prepare: without", asked), (VARIABLE, named)):
        unknown = [name for name in names if name not in SWITCHES]
        if unknown:
            raise ValueError(f"{who}: expected names of {', '.join(SWITCHES)}; got {unknown[0]!r}")
    return frozenset((*asked, *named))


def check_wish(left_out: Collection[str], options: Mapping[str, Any]) -> None:
    """What is asked of the optimizer or of the threads cannot be had while they are left out. options: of prepare()."""
    asked = [f"{name} {options[name]}" for name in ("clip", "state_precision") if options[name] not in (None, "fp32")]
    asked += [options["precision"]] if options["precision"] in ("bf16", "fp16") else []
    if "optimizer" in left_out and asked:
        raise ValueError(f"prepare: expected nothing without optimizer that needs it, got {asked[0]}; leave one out")
    if "threads" in left_out and options["threads"] is not None:
        raise ValueError(f"prepare: expected no number without threads, got {options['threads']}; leave one out")
