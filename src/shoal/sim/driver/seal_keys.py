"""A simulated device's secrets for sealed sums: the same protocol, with randomness that a seed reproduces.

The twin of the runtime's. There certificates sign keys; here a hash that every node could make replaces the signature.
"""

from __future__ import annotations

import hashlib

import numpy as np

from shoal.errors import Misuse
from shoal.sealing.carry_out import DeviceKeys, statement
from shoal.sealing.device import ENTROPY_BYTES, SealedUpdate, rounding_of
from shoal.sealing.pair import PRIVATE_BYTES, SEED_BYTES
from shoal.sealing.request import MasksRequest, SealRequest
from shoal.wire.messages import NONCE_BYTES, SEAL_FORM, MemberKey, SealRoster


class SimSealKeys:
    def __init__(self, node: str, incarnation: str, job: str) -> None:
        self._node, self._job = node, job
        self._seed = f"{node} {incarnation} {job}"
        self._count = 0
        self._keys: dict[int, DeviceKeys] = {}

    def _drawn(self, size: int) -> bytes:
        self._count += 1
        return hashlib.shake_256(f"{self._seed} {self._count}".encode()).digest(size)

    def next_rounding(self) -> bytes:
        """Return the randomness of the next sealed update's rounding and noise. Oracles read it."""
        return rounding_of(self.next_entropy())

    def next_seed(self) -> bytes:
        """Return the seed of the next sealed update's mask. Oracles read it."""
        return self.next_entropy()[:SEED_BYTES]

    def next_entropy(self) -> bytes:
        """Return all randomness of the next sealed update. Oracles read it."""
        count = self._count
        entropy, self._count = self._drawn(ENTROPY_BYTES), count
        return entropy

    def make(self, term: int) -> MemberKey:
        keys = DeviceKeys(self._drawn(PRIVATE_BYTES))
        self._keys = {term: keys}
        nonce = self._drawn(NONCE_BYTES)
        signature = self._signature(term, self._node, keys.public, nonce)
        return MemberKey(
            node=self._node, public=keys.public, nonce=nonce, signature=signature, certificate=b"", form=SEAL_FORM
        )

    def chance(self) -> bytes:
        """The device's own randomness."""
        return self._drawn(16)

    def _signature(self, term: int, node: str, public: bytes, nonce: bytes) -> bytes:
        told = statement(cluster="simulated", job=self._job, term=term, node=node, public=public, nonce=nonce)
        return hashlib.sha256(told).digest()

    def check(self, roster: SealRoster) -> dict[str, str]:
        return {
            key.node: "its device did not sign it for this job and term"
            for key in roster.keys
            if key.signature != self._signature(roster.term, key.node, key.public, key.nonce)
        }

    def seal(self, request: SealRequest) -> tuple[np.ndarray, bytes, SealedUpdate]:
        return self._of(request.label.term).seal(request, entropy=self._drawn(ENTROPY_BYTES))

    def sum_masks(self, request: MasksRequest) -> np.ndarray:
        return self._of(request.label.term).sum_masks(request)

    def _of(self, term: int) -> DeviceKeys:
        keys = self._keys.get(term)
        if keys is None:
            raise Misuse(f"there is no key of term {term}")
        return keys
