"""The label of a group: everything that its members must see alike. Masks are made of it, so that no mask fits two.

Terms are durable before use and never given twice, and a leader counts its groups: no two groups have one label,
whatever dies. The model, its version and its epoch are in it too, as each device trained on them: a leader that tells
devices different ones gets noise.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass


def trained_on(model: bytes, *, version: int, epoch: int) -> bytes:
    """What members must have trained on alike: the digest of the model, its version and its epoch. From the version a
    device works out the learning rate, by the plan that the operator signed."""
    return hashlib.sha256(b"shoal seal base 2\n" + json.dumps([model.hex(), version, epoch]).encode()).digest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    #: The operator's signature under the job: of one cluster, and of this job with all that it says.
    origin: str
    job: str
    term: int
    #: Always 0: the way that words go is no part of what members must see alike.
    formation: int
    group: int
    #: Name and public key of every member, in the order of their places.
    members: tuple[tuple[str, bytes], ...]
    #: The largest value of an update, as a power of two, and the largest number of examples.
    bound: int
    weight_most: int
    #: What the members trained on (``trained_on``).
    base: bytes = b""
    #: The hash of the places that words are of; empty: they are of the whole model.
    places: bytes = b""

    @property
    def turn(self) -> tuple[int, int]:
        """Labels of a device grow: a label that is not above its newest is refused."""
        return self.term, self.group

    def digest(self) -> bytes:
        """All of it, in one form only."""
        told = [
            self.origin,
            self.job,
            self.term,
            self.formation,
            self.group,
            [[name, public.hex()] for name, public in self.members],
            self.bound,
            self.weight_most,
            self.base.hex(),
            *([self.places.hex()] if self.places else []),
        ]
        return hashlib.sha256(b"shoal seal label 2\n" + json.dumps(told, separators=(",", ":")).encode()).digest()
