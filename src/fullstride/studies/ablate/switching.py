"""How a technique is switched: what the process with it, or without it, is started with.

    alone     a process of stock PyTorch with this technique and no other; against stock PyTorch
    left out  all that `fullstride train RECIPE` does without this technique; against all of it
    added     where the recipe does not have it: all of it and this technique; against all of it

A process of stock PyTorch that has one technique of ours imports the package with FULLSTRIDE_HEAP=0, and prepare()
leaves out everything else: torch's modules, products, threads and optimizer, in fp32.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...recipes.config import Config

STOCK, ALL, ALL_FP32 = "stock PyTorch", "all", "all in fp32"
ALONE, LEFT_OUT, ADDED = "alone", "left out", "added"
NOTHING = "nothing to switch"
_CARRIERS = {"class_swap", "probes", "fusion"}  # they cost nothing where none of their parts is on


@dataclass(frozen=True)
class Subject:
    """What is known of a recipe before a technique of it is measured."""

    config: "Config"
    precision: str  # that all of it came to
    used: frozenset[str]  # names of rewriting.SWITCHES that do something for it
    functions: frozenset[str]  # those of them whose functions the model calls
    threads: int
    heap_kept: bool = True
    micro_batch_matters: str | None = None  # why other micro-batches would be another training


@dataclass(frozen=True)
class Trial:
    """One process to be measured against a reference."""

    way: str
    reference: str
    has_it: bool  # the process has the technique and its reference has not; else the other way round
    settings: dict[str, Any] = field(default_factory=dict)  # of side.py
    changes: dict[str, Any] = field(default_factory=dict)  # of the recipe's config
    note: str = ""
    is_compiled: bool = False


Answer = Trial | str
"""What to measure, or why nothing can be."""
Ask = Callable[[Subject], Answer]


@dataclass(frozen=True)
class Technique:
    what: str
    alone: Ask
    within: Ask  # left out of all, or added to it
    needs: tuple[str, ...] = ()  # techniques that it is switched on with, because it cannot be without them


def over_stock(on: Iterable[str], subject: Subject, precision: str = "fp32", **options: Any) -> dict[str, Any]:
    """Of a process of stock PyTorch in which prepare() does nothing but these parts and mechanisms."""
    from ...rewriting import SWITCHES  # loads torch, which the names of techniques need not wait for

    wanted = {*on} | _CARRIERS
    if subject.functions & wanted:
        wanted.add("function_mode")  # asks before each function of torch, which costs time
    own: dict[str, Any] = {"without": sorted(SWITCHES.keys() - wanted), "overlap_weight_grads": False}
    own |= {"activations": "same", "loss_scaler": None, "precision": precision, "state_precision": "fp32"}
    own |= {} if "threads" in wanted else {"threads": None}
    environment = {"FULLSTRIDE_HEAP": "0"}
    return {"fullstride": precision, "options": own | options, "over_stock": True, "environment": environment}


def of_all(subject: Subject, precision: str | None = None, **options: Any) -> dict[str, Any]:
    """Of a process that does all that `fullstride train` does, but for these options of prepare()."""
    if precision is None:
        return {"fullstride": subject.config.precision, "options": options}
    return {"fullstride": precision, "options": {"precision": precision, "loss_scaler": None} | options}


def without(subject: Subject, *parts: str, precision: str | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {"without": list(parts)}
    if "threads" in parts:
        options["threads"] = None
    return of_all(subject, precision, **options)


def switch(
    what: str, *parts: str, plus: Iterable[str] = (), needs: tuple[str, ...] = (), absent: str = "the model has none"
) -> Technique:
    """Of parts and mechanisms of rewriting.SWITCHES. plus: more of them that it is switched on with when alone.

    absent: why there is nothing to switch where none of the parts does anything.
    """

    def alone(subject: Subject) -> Answer:
        if not subject.used.intersection(parts):
            return f"{NOTHING}: {absent}"
        return Trial(ALONE, STOCK, True, over_stock((*parts, *plus), subject), note=with_note(needs))

    def within(subject: Subject) -> Answer:
        if not subject.used.intersection(parts):
            return f"{NOTHING}: {absent}"
        return Trial(LEFT_OUT, ALL, False, without(subject, *parts))

    return Technique(what, alone, within, needs)


def of_config(what: str, is_on: Callable[["Config"], bool], on: dict[str, Any], off: dict[str, Any]) -> Technique:
    """Of fields of the config that stock PyTorch's side follows, too. A recipe that has it is measured without it."""

    def ask(way: str, reference: str) -> Ask:
        def answer(subject: Subject) -> Answer:
            has_it = is_on(subject.config)
            settings = {} if reference == STOCK else of_all(subject)
            note = "the recipe has it, on both sides: stock PyTorch was measured without it" if has_it else ""
            if reference == STOCK:
                return Trial(way, reference, not has_it, settings, off if has_it else on, note)
            return Trial(LEFT_OUT if has_it else ADDED, reference, not has_it, settings, off if has_it else on)

        return answer

    return Technique(what, ask(ALONE, STOCK), ask(ADDED, ALL))


def with_note(needs: Iterable[str]) -> str:
    names = ", ".join(needs)
    return f"needs {names}, whose gain is in it" if names else ""
