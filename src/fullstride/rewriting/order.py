"""The order in which mechanisms are asked for each module, and the way back.

Children come before their parents, which may fuse what their children were found to be. The first mechanism that has an
answer for a module decides: it replaces something, or says why it must not be replaced. What it does to a module can be
undone: put_back() asks all of them.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from torch import nn

from . import class_swap, lazy_logits, probes
from .fusion import fuse
from .mechanisms import Answer

ORDER: dict[str, Callable[[nn.Module, Collection[str]], Answer]] = {
    "lazy_logits": lazy_logits.replace,
    "class_swap": class_swap.replace,
    "probes": probes.replace,
    "fusion": fuse.replace,
}


@dataclass(frozen=True)
class Outcome:
    """What became of one module. `done` says what was put in its place, `left` why nothing was; one is empty.

    parts: those of mechanisms.PARTS that `done` is of.
    """

    name: str
    kind: str
    mechanism: str
    done: str = ""
    left: str = ""
    parts: tuple[str, ...] = ()


def rewrite(model: nn.Module, without: Collection[str] = ()) -> list[Outcome]:
    """Makes every module fast that is known. One outcome a module that was, or that has a reason why not.

    without: mechanisms and parts that are left out.
    """
    mechanisms = {name: replace for name, replace in ORDER.items() if name not in without}
    outcomes = []
    for name, module in reversed(list(model.named_modules())):
        kind = type(module).__name__
        for mechanism, replace in mechanisms.items():
            answer = replace(module, without)
            if answer.done or answer.left:
                outcomes.append(Outcome(name or "(the model)", kind, mechanism, *answer))
                break
    return outcomes[::-1]


def put_back(model: nn.Module) -> None:
    """Every module as it was."""
    for module in model.modules():
        fuse.put_back(module)
        probes.put_back(module)
        class_swap.put_back(module)
        lazy_logits.put_back(module)
