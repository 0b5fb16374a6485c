"""The file in which a soak writes down what was: one JSON line for each thing that is known. A kill leaves it readable.

Its lines are added and never changed; of a line about the same thing, the last one counts.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shoal.errors import ShoalError
from testbed.soak.growth import Sample


class InUse(ShoalError):
    """Another soak writes this file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leg:
    """What came of one cluster, from its first fault until now."""

    #: Counted from 0: a soak that is continued has a new cluster, and that is the next leg.
    number: int
    managers: int
    #: With faults.
    seconds: float
    faults: dict[str, int]
    #: Faults that found nothing to hurt.
    missed: int
    #: Batches in the history that survives, and what the living devices would have applied without faults.
    applied: int
    expected: float
    lost: int
    twice: int
    jobs_finished: int
    #: Of every finished job, whether its model is what its history says.
    model_matches: bool
    tracebacks: tuple[str, ...]
    load: tuple[float, ...]
    commit: str

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        return cls(**{**fields, "tracebacks": tuple(fields["tracebacks"]), "load": tuple(fields["load"])})


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.legs: dict[int, Leg] = {}
        self.samples: dict[int, list[Sample]] = {}
        for line in _lines(path):
            if line["is"] == "leg":
                leg = Leg.of(line["leg"])
                self.legs[leg.number] = leg
            else:
                self.samples.setdefault(line["leg"], []).append(Sample(**line["sample"]))
        #: The number of a new leg: also one that ended before its first fault has samples.
        self.next_leg = 1 + max([*self.legs, *self.samples], default=-1)

    def seconds(self, managers: int) -> float:
        """With faults, so far, with so many managers."""
        return sum(leg.seconds for leg in self.legs.values() if leg.managers == managers)

    def add_leg(self, leg: Leg) -> None:
        self.legs[leg.number] = leg
        self._write({"is": "leg", "leg": dataclasses.asdict(leg)})

    def add_sample(self, leg: int, sample: Sample) -> None:
        self.samples.setdefault(leg, []).append(sample)
        self._write({"is": "sample", "leg": leg, "sample": dataclasses.asdict(sample)})

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


@contextmanager
def opened(path: Path, *, anew: bool = False) -> Iterator[Journal]:
    """The journal for this process alone. ``anew``: what is there is put aside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"another soak writes {path}") from None
        if anew and path.exists():
            path.replace(path.with_suffix(".before"))
        _mend(path)
        yield Journal(path)


def default_path() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "soak.jsonl"


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _mend(path: Path) -> None:
    """Cut off half a line at the end: who wrote it was killed."""
    if path.exists():
        whole, newline, _ = path.read_bytes().rpartition(b"\n")
        os.truncate(path, len(whole) + len(newline))
