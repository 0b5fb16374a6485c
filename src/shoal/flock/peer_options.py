"""What a device of a flock is started with, once `shoal flock train` wrote its orders."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from shoal.runtime import command_line
from shoal.runtime.command_line import HIDDEN, described, option
from shoal.runtime.paths import default_home


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PeerOptions:
    home: Path = dataclasses.field(default_factory=default_home, metadata=described("where its orders are"))
    data: Path | None = option(None, "the folder of this device's own examples")
    quiet: bool = option(False, "log warnings only")
    out: Path | None = option(None, "copy the last model here")
    json: bool = option(False, "print the outcome as one JSON object")
    leash: bool = option(False, "end when standard input closes")
    child_module: str = option("shoal.trainer.child", HIDDEN)
    #: The least that a batch takes.
    pace_s: float = option(0.0, HIDDEN)

    def to_argv(self) -> list[str]:
        """Return the arguments of ``python -m shoal.flock.driver`` that give these options."""
        return command_line.to_argv(self)

    @classmethod
    def parse(cls, argv: Sequence[str]) -> Self:
        purpose = "Train in a flock with the orders in this home."
        return command_line.parse(cls, argv, program="shoal-flock", purpose=purpose)
