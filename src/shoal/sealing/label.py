"""The label of a group: everything that its members must see alike. Masks depend on it, so no mask fits two labels.

Terms are durable before use and never reused, and a leader numbers its groups: no two groups have the same label,
whichever process dies. The label also has the model, its version and its epoch, as each device trained on them. A
leader that sends devices different ones gets noise.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass


def trained_on(model: bytes, *, version: int, epoch: int) -> bytes:
    """Return a digest of what all members must have trained on: the model's digest, its version and its epoch. A
    device computes the learning rate from the version, by the plan that the operator signed."""
    return hashlib.sha256(b"shoal seal base 2\n" + json.dumps([model.hex(), version, epoch]).encode()).digest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    #: The operator's signature of the job. It covers the cluster and the entire job description.
    origin: str
    job: str
    term: int
    #: Always 0: the route that words take is not part of what members must see alike.
    formation: int
    group: int
    #: Name and public key of every member, in the order of their places.
    members: tuple[tuple[str, bytes], ...]
    #: The largest value of an update, as a power of two, and the largest number of examples.
    bound: int
    weight_most: int
    #: What the members trained on (``trained_on``).
    base: bytes = b""
    #: The hash of the model's indices that the words cover, or empty if they cover the entire model.
    places: bytes = b""

    @property
    def turn(self) -> tuple[int, int]:
        """The order of labels. A device refuses a label that is not above its newest."""
        return self.term, self.group

    def digest(self) -> bytes:
        """Return the hash of the label in its only encoding."""
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
