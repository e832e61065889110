"""What the loader asks of a data set."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Dataset(Protocol):
    def __len__(self) -> int: ...

    def batch(self, indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> tuple[Tensor, ...]:
        """The samples `indices`, each as it is in the epoch beside it: a pure function of the arguments.

        A sample has the same bits in whatever batch and process it is made, so that neither workers nor a resume
        change anything. Workers are forked: they have the open files of this process, but may not share their positions
        (os.pread and mmap have none). What cannot be read is a ValueError or OSError with the file and the position.
        """
        ...
