"""What each of several processes sent, and how long it waited for the others: columns of a row, and who is slow.

A process waits from the end of its backward until all gradients are here.
"""

import logging
from typing import Any

from ...distributed.replicas import Replicas
from ...distributed.world import World
from ...machine import memory
from ...run_folder import stragglers

logger = logging.getLogger(__name__)


class Ranks:
    def __init__(self, world: World, replicas: Replicas) -> None:
        self._world, self._replicas = world, replicas
        self.how = replicas.how
        self._spells, self._found = stragglers.Spells(), list[stragglers.Spell]()
        self._named: int | None = None
        replicas.take_costs()

    def row(self) -> list[dict[str, Any]]:
        """By rank, since the last row. All processes must call it."""
        costs = self._replicas.take_costs()
        size = memory.resident_bytes()
        own = {
            "sent_mb": round(costs["sent_mb"], 3),
            "wait": round(costs["wait"], 4),
            "wall": round(costs["wall"], 4),
            "resident_mb": None if size is None else round(size / 1e6, 1),
        }
        everyone = self._world.gather(own)
        self._mind_slow(everyone)
        return everyone

    def _mind_slow(self, everyone: list[dict[str, Any]]) -> None:
        spell = self._spells.add(everyone)
        if spell is None:
            return
        self._found.append(spell)
        if stragglers.is_lasting(self._found) and spell.rank != self._named and self._world.is_first:
            self._named = spell.rank
            name, share = self._world.name(spell.rank), 100 * spell.share
            logger.warning("%s is slower than the others, which wait for it %.0f%% of the time", name, share)
