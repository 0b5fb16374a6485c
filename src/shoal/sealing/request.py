"""What a role asks to have sealed: everything but secrets and chance, which are its driver's. A value."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shoal.sealing.group import MaskGraph
from shoal.sealing.label import Label
from shoal.sealing.noise import NoisePoint


@dataclass(frozen=True, kw_only=True, slots=True)
class SealRequest:
    #: Without the model that was trained on: the driver knows its digest.
    label: Label
    group: MaskGraph
    place: int
    #: What the update counts for, of the largest weight.
    factor: float
    #: Bits of a word: 32, or 16 under the codecs ``int16`` and ``led``.
    word_bits: int = 32
    #: Where the words of the sum lie in the update, ascending; None: it is words of all of it.
    places: np.ndarray | None = field(default=None, compare=False, repr=False)
    #: Where the plan is private too: how long the update may be, and the device's share of noise.
    noise: NoisePoint | None = None
    update: np.ndarray = field(compare=False, repr=False)
