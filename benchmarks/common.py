"""What several benchmarks share: the size of PerNet, and when a simulated job made its versions."""

from __future__ import annotations

from shoal.sim.observe import Mark, Step

#: PerNet, EDDL's network: 427-512-512-256-256-128-71.
PERNET = 720_967


class Versions:
    """Watches a simulation of one job: when each version was first told to anyone, from version 1 on."""

    def __init__(self) -> None:
        self.made_s: list[float] = []

    def step(self, step: Step) -> None:
        if step.role != "leader":
            return
        for action in step.actions:
            version = getattr(getattr(action, "message", None), "version", 0)
            if version > len(self.made_s):
                self.made_s.append(step.at_s)

    def mark(self, mark: Mark) -> None:
        pass
