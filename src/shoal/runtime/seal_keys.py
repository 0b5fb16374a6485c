"""A device's secrets for the sealed sums of one job: drawn here, in memory alone, and gone with the process."""

from __future__ import annotations

import os
import ssl

import numpy as np

from shoal.errors import Misuse, PeerViolation
from shoal.identity import chain
from shoal.identity.identity import Identity
from shoal.sealing.carry_out import DeviceKeys, statement
from shoal.sealing.device import ENTROPY_BYTES, SealedUpdate
from shoal.sealing.pair import PRIVATE_BYTES
from shoal.sealing.request import MasksRequest, SealRequest
from shoal.wire.messages import NONCE_BYTES, SEAL_FORM, MemberKey, SealRoster


class SealKeys:
    """Called in threads, one call at a time."""

    def __init__(self, member: Identity, job: str) -> None:
        self._member = member
        self._job = job
        self._keys: dict[int, DeviceKeys] = {}
        #: (term, key) that was found good.
        self._good: set[tuple[int, MemberKey]] = set()

    def make(self, term: int) -> MemberKey:
        """A new key for this term; those of older terms are forgotten."""
        from shoal.identity import certificates

        keys = DeviceKeys(os.urandom(PRIVATE_BYTES))
        self._keys, self._good = {term: keys}, set()
        nonce, member = os.urandom(NONCE_BYTES), self._member
        told = self._statement(term, member.node, keys.public, nonce)
        return MemberKey(
            node=member.node,
            public=keys.public,
            nonce=nonce,
            signature=certificates.signature(told, member.key_pem),
            certificate=chain.der_of(member.certificate_pem),
            form=SEAL_FORM,
        )

    def _statement(self, term: int, node: str, public: bytes, nonce: bytes) -> bytes:
        cluster = self._member.cluster
        return statement(cluster=cluster, job=self._job, term=term, node=node, public=public, nonce=nonce)

    def check(self, roster: SealRoster) -> dict[str, str]:
        """Whose keys do not hold, and why."""
        bad = {}
        for key in roster.keys:
            if (roster.term, key) in self._good:
                continue
            try:
                self._check(roster.term, key)
                self._good.add((roster.term, key))
            except PeerViolation as violation:
                bad[key.node] = violation.reason
        return bad

    def _check(self, term: int, key: MemberKey) -> None:
        from shoal.identity import certificates

        member = self._member
        root_der = ssl.PEM_cert_to_DER_cert(member.ca_pem.decode("ascii"))
        signer = certificates.authenticate(key.certificate, root_der=root_der, now_s=None)
        if (signer.cluster, signer.role, signer.node) != (member.cluster, "node", key.node):
            raise PeerViolation(f"it is of {signer.uri}")
        told = self._statement(term, key.node, key.public, key.nonce)
        if not certificates.is_signed(told, key.signature, key.certificate):
            raise PeerViolation("its device did not sign it for this job and term")

    def seal(self, request: SealRequest, *, base: bytes) -> tuple[np.ndarray, bytes, SealedUpdate]:
        return self._of(request.label.term).seal(request, base=base, entropy=os.urandom(ENTROPY_BYTES))

    def sum_masks(self, request: MasksRequest) -> np.ndarray:
        return self._of(request.label.term).sum_masks(request)

    def _of(self, term: int) -> DeviceKeys:
        keys = self._keys.get(term)
        if keys is None:
            raise Misuse(f"there is no key of term {term}")
        return keys
