"""A device's secrets for the sealed sums of one job: drawn here, only in memory, and gone with the process."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse, PeerViolation
from shoal.identity import chain
from shoal.identity.cards import SLACK_S, CardKey, check_card
from shoal.identity.identity import Identity
from shoal.sealing.carry_out import DeviceKeys, statement
from shoal.sealing.device import ENTROPY_BYTES, SealedUpdate
from shoal.sealing.pair import PRIVATE_BYTES
from shoal.sealing.request import MasksRequest, SealRequest
from shoal.wire.messages import NONCE_BYTES, SEAL_FORM, MemberKey, SealRoster

#: A key that was found good is not checked again within this time.
GOOD_FOR_S = 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedMembers:
    """What a device needs for a job with signed members: its own card, and the operator's key that it pinned."""

    card: bytes
    card_key: CardKey
    pinned: bytes


class SealKeys:
    """Called in threads, one call at a time. With ``signed``, only keys with a card of the pinned operator hold."""

    def __init__(self, member: Identity, job: str, *, signed: SignedMembers | None = None) -> None:
        self._member = member
        self._job = job
        self._signed = signed
        self._keys: dict[int, DeviceKeys] = {}
        #: (term, key) that was found good -> when.
        self._good: dict[tuple[int, MemberKey], float] = {}

    def make(self, term: int) -> MemberKey:
        """A new key for this term; those of older terms are forgotten."""
        from shoal.identity import certificates

        keys = DeviceKeys(os.urandom(PRIVATE_BYTES))
        self._keys, self._good = {term: keys}, {}
        nonce, member = os.urandom(NONCE_BYTES), self._member
        told, signed = self._statement(term, member.node, keys.public, nonce), self._signed
        return MemberKey(
            node=member.node,
            public=keys.public,
            nonce=nonce,
            signature=certificates.signature(told, member.key_pem),
            certificate=chain.der_of(member.certificate_pem),
            form=SEAL_FORM,
            card=signed.card if signed is not None else b"",
            card_signature=signed.card_key.sign(told) if signed is not None else b"",
        )

    def _statement(self, term: int, node: str, public: bytes, nonce: bytes) -> bytes:
        cluster = self._member.cluster
        return statement(cluster=cluster, job=self._job, term=term, node=node, public=public, nonce=nonce)

    def check(self, roster: SealRoster, *, now_s: float) -> dict[str, str]:
        """Return the devices whose keys do not hold, with the reason of each."""
        bad = {}
        for key in roster.keys:
            if now_s - self._good.get((roster.term, key), -GOOD_FOR_S) < GOOD_FOR_S:
                continue
            try:
                self._check(roster.term, key, now_s)
                self._good[roster.term, key] = now_s
            except PeerViolation as violation:
                bad[key.node] = violation.reason
        return bad

    def _check(self, term: int, key: MemberKey, now_s: float) -> None:
        from shoal.identity import certificates

        member, signed = self._member, self._signed
        root_der = chain.der(member.ca_pem)
        signer = certificates.authenticate(key.certificate, root_der=root_der, now_s=now_s, slack_s=SLACK_S)
        if (signer.cluster, signer.role, signer.node) != (member.cluster, "node", key.node):
            raise PeerViolation(f"it is of {signer.uri}")
        told = self._statement(term, key.node, key.public, key.nonce)
        if not certificates.is_signed(told, key.signature, key.certificate):
            raise PeerViolation("its device did not sign it for this job and term")
        if signed is None:
            return
        card_key = check_card(key.card, cluster=member.cluster, node=key.node, pinned=signed.pinned, now_s=now_s)
        if not certificates.is_card_signed(told, key.card_signature, card_key):
            raise PeerViolation("it is not signed with the key that its card names")

    def seal(self, request: SealRequest) -> tuple[np.ndarray, bytes, SealedUpdate]:
        return self._of(request.label.term).seal(request, entropy=os.urandom(ENTROPY_BYTES))

    def sum_masks(self, request: MasksRequest) -> np.ndarray:
        return self._of(request.label.term).sum_masks(request)

    def _of(self, term: int) -> DeviceKeys:
        keys = self._keys.get(term)
        if keys is None:
            raise Misuse(f"there is no key of term {term}")
        return keys
