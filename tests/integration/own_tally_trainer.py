"""A tally of turns on devices' own examples: a value says how often, and with what weight, a turn of an epoch went into
the model. Run in place of the real trainer with ``--child-module own_tally_trainer``."""

from __future__ import annotations

import dataclasses

from tally_trainer import TallyTrainer

from shoal.trainer import child_loop
from shoal.trainer.protocol import TaskLoaded, TrainResult

#: Turns of an epoch that have a value each.
TURNS = 20


def place_of(epoch: int, turn: int, size: int) -> int:
    return (TURNS * epoch + turn) % size


class OwnTallyTrainer(TallyTrainer):
    def loaded(self) -> TaskLoaded:
        return dataclasses.replace(super().loaded(), train_examples=self._settings.batch_size)

    def learn(self, epoch: int, lease: int, examples: int, *, rate: float = 0.0, version: int = 0) -> TrainResult:
        """As if this device had one batch of its own."""
        place = place_of(epoch, lease, self._shared.update.size)
        return dataclasses.replace(self.train(epoch, [place]), held=self._settings.batch_size)


if __name__ == "__main__":
    child_loop.main(OwnTallyTrainer)
