"""A device's secrets in memory, and the code that fulfils a role's requests with them. Both drivers use it and pass in
the randomness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shoal.errors import PeerViolation
from shoal.sealing.device import GroupPlace, SealedUpdate, seal
from shoal.sealing.figures import encode_figures
from shoal.sealing.fixed import FixedPoint
from shoal.sealing.helped import seal_for_helper, sum_of_masks
from shoal.sealing.label import trained_on
from shoal.sealing.pair import pair_key, public_of
from shoal.sealing.request import MasksRequest, SealRequest


def statement(*, cluster: str, job: str, term: int, node: str, public: bytes, nonce: bytes) -> bytes:
    """Return the text that a device signs. Nothing else that a certificate's key signs has this prefix."""
    told = [cluster, job, str(term), node, public.hex(), nonce.hex()]
    return b"shoal seal key 2\n" + "\n".join(told).encode()


class DeviceKeys:
    """The private key for one job and term. It is never stored, so it lasts only as long as the process."""

    def __init__(self, private: bytes) -> None:
        self._private = private
        self.public = public_of(private)
        #: (name, public key) of another node -> the key that this device shares with it.
        self._pairs: dict[tuple[str, bytes], bytes] = {}

    def seal(self, request: SealRequest, *, entropy: bytes) -> tuple[np.ndarray, bytes, SealedUpdate]:
        """Return the masked words and the seals for the leader, and the state that the device keeps."""
        base = trained_on(request.model, version=request.version, epoch=request.epoch)
        label, members = replace(request.label, base=base), request.label.members
        if members[request.place][1] != self.public:
            raise PeerViolation("the group has a public key for this device that is not its current one")
        mine = members[request.place]
        others = range(len(members)) if request.helper is None else ()
        keys = {other: self._pair(mine, members[other]) for other in others if other != request.place}
        seat = GroupPlace(request.group, request.place, label.digest(), keys)
        point = request.noise or FixedPoint(label.bound, request.group.size, request.word_bits)
        figures = encode_figures(request.figures, point) if isinstance(point, FixedPoint) else None
        values = request.update if request.places is None else request.update[request.places]
        if request.helper is None:
            words, seals, kept = seal(seat, values, fixed=point, entropy=entropy, figures=figures)
        else:
            words, seals = seal_for_helper(
                values,
                key=self._pair(mine, request.helper),
                label=seat.label,
                place=seat.place,
                fixed=point,
                entropy=entropy,
                figures=figures,
                is_covered=request.is_covered,
            )
            kept = SealedUpdate(seat)
        kept.places = request.places
        return words, seals, kept

    def sum_masks(self, request: MasksRequest) -> np.ndarray:
        """Return the sum of these members' masks. A helper knows this sum and none of the updates."""
        if request.helper[1] != self.public:
            raise PeerViolation("the request names a public key for this helper that is not its current one")
        members = request.label.members
        keys = {place: self._pair(request.helper, members[place]) for place in request.envelopes}
        label = request.label.digest()
        return sum_of_masks(keys, request.envelopes, label, words=request.words, bits=request.word_bits)

    def _pair(self, mine: tuple[str, bytes], other: tuple[str, bytes]) -> bytes:
        if other not in self._pairs:
            self._pairs[other] = pair_key(self._private, mine, other)
        return self._pairs[other]
