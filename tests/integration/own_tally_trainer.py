"""A tally of devices' own examples: a value says how often, and with what weight, a device went into the model in an
epoch. Run in place of the real trainer with ``--child-module own_tally_trainer``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tally_trainer import TallyTrainer

from shoal.trainer import child_loop
from shoal.trainer.protocol import TaskLoaded, TrainResult

#: Leases of an epoch, and devices that have a value each in it.
TURNS = 20


def place_of(epoch: int, node: str, size: int) -> int:
    """The value of a device in an epoch; its name ends with its number."""
    return (TURNS * epoch + int(node.rpartition("-")[2]) % TURNS) % size


class OwnTallyTrainer(TallyTrainer):
    def loaded(self) -> TaskLoaded:
        return dataclasses.replace(super().loaded(), train_examples=self._settings.batch_size)

    def learn(self, epoch: int, lease: int, examples: int, *, rate: float = 0.0, version: int = 0) -> TrainResult:
        """As if this device had one batch of its own."""
        place = place_of(epoch, self._node(), self._shared.update.size)
        return dataclasses.replace(self.train(epoch, [place]), held=self._settings.batch_size)

    def _node(self) -> str:
        """A trainer is not told where it runs; its files are under the home of its agent."""
        parts = Path(self._settings.bundle_dir).parts
        return parts[parts.index("devices") + 1]


if __name__ == "__main__":
    child_loop.main(OwnTallyTrainer)
