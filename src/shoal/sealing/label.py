"""The label of a group: everything that its members must see alike. Masks are made of it, so that no mask fits two.

Terms are durable before use and never given twice, and a leader counts its groups: no two groups have one label,
whatever dies. The digest of the model is in it too: a leader that gives devices different models gets noise.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass


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
    #: The largest value of an update, as a power of two, and the largest weight.
    bound: int
    weight_most: int
    #: The hash of the model that the members trained on.
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
        return hashlib.sha256(b"shoal seal label 1\n" + json.dumps(told, separators=(",", ":")).encode()).digest()
