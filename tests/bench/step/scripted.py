"""Processes that are not there: what is made of their answers needs none."""

from typing import Any


class Scripted:
    """Stands for a process whose steps take the seconds of its settings, or which fails as they say."""

    seconds: dict[str, float | Exception]
    open: list[str]

    def __init__(self, name, config, limit=None):
        self.name = name
        self.facts: dict[str, Any] = {"gflop": 1.0}
        self.cost = self.seconds[name]
        self.open.append(name)
        self.limits = [limit]  # of each answer

    def run(self, steps, limit=None):
        self.limits.append(limit)
        if isinstance(self.cost, Exception):
            raise self.cost
        return {"seconds": [self.cost] * steps}

    def rest(self):
        pass

    def close(self):
        if self.name in self.open:
            self.open.remove(self.name)


class Mortal(Scripted):
    """Of which those that fail do so at their first step."""

    def __init__(self, name, config, limit=None):
        super().__init__(name, config, limit)
        self.facts |= {"precision": "fp32", "units": 8, "unit": "samples", "parameters": 10, "dropout": False}
        self.losses, self.peaks, self.frozen = [], [], []

    def run(self, steps, limit=None):
        answer = super().run(steps, limit)
        self.losses += [1.0] * steps
        self.peaks += [1 << 20] * steps
        return answer | {"faults": 0}
