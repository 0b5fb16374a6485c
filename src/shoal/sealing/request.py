"""What a role asks to have sealed or opened: everything but secrets and chance, which are its driver's. Values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.sealing.group import MaskGraph
from shoal.sealing.label import Label
from shoal.sealing.noise import NoisePoint

#: Why a driver does not seal an update that was trained on another first version than the job's.
NOT_THE_SIGNED_MODEL = "version 0 is not the model that the operator signed"


@dataclass(frozen=True, kw_only=True, slots=True)
class SealRequest:
    #: Without what was trained on.
    label: Label
    #: The digest of the model that this update was trained on, and its version and epoch, as this device had them.
    model: bytes
    version: int
    epoch: int
    group: MaskGraph
    place: int
    #: Bits of a word: 32, or 16 under the codecs ``int16`` and ``led``.
    word_bits: int = 32
    #: Where the words of the sum lie in the update, ascending; None: it is words of all of it.
    places: np.ndarray | None = field(default=None, compare=False, repr=False)
    #: Where the plan is private too: how long the update may be, and the device's share of noise.
    noise: NoisePoint | None = None
    #: Where a helper opens sums: its name and public key.
    helper: tuple[str, bytes] | None = None
    update: np.ndarray = field(compare=False, repr=False)
    #: Figures of the training, each from 0 to 1, of which the leader learns only the mean over the group
    #: (``sealing.figures``). With noise, none is told.
    figures: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MasksRequest:
    """The sum of the masks of some members, which a helper is asked for."""

    label: Label
    #: The helper's own name and public key.
    helper: tuple[str, bytes]
    #: Place of a member whose words are in the sum -> its envelope.
    envelopes: Mapping[int, bytes] = field(repr=False)
    #: Words of the sum, and bits of a word.
    words: int
    word_bits: int = 32
