"""What a set of pictures with captions is to the recipe: one after the other, with captions that are wrong, too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Kind = Literal["easy", "medium", "hard"]
KINDS: tuple[Kind, ...] = ("easy", "medium", "hard")


@dataclass(frozen=True)
class Classes:
    """Pictures to be told apart by captions alone, which no training had as classes."""

    name: str  # what differs: "shape"
    prompts: Sequence[str]  # a caption for each class
    labels: Sequence[int]  # the class of each picture
    picture: Callable[[int], NDArray[np.uint8]]  # by its place in labels, (size, size, 3)


class Source(Protocol):
    """Everything is a pure function of its arguments: the same in every process, whatever was asked before."""

    @property
    def fingerprint(self) -> str:
        """Of the content: a resumed run tells when it is another one."""
        ...

    def __len__(self) -> int: ...

    def picture(self, index: int) -> NDArray[np.uint8]:
        """(size, size, 3), RGB."""
        ...

    def caption(self, index: int, draw: int = 0) -> str:
        """One of its phrasings; `draw` is any number from 0 on that chooses, 0 what evaluations read."""
        ...

    def wrong_caption(self, index: int, kind: Kind, draw: int = 0) -> str:
        """One that does not belong to the picture. Not the words of any phrasing of its own caption.

        easy: of another picture; medium: it shares an attribute, or a word; hard: the same objects in another relation
        or with colours exchanged, or the caption that shares the most words.
        """
        ...

    def is_own(self, index: int, caption: str) -> bool:
        """Whether it is the caption of this picture, or one of them."""
        ...

    def classes(self) -> Sequence[Classes]:
        """For classification without training; none where nothing is known of the pictures but captions."""
        ...
