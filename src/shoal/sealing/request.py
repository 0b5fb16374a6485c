"""Requests of a role to seal or open: everything except secrets and randomness, which the driver has. Values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.sealing.group import MaskGraph
from shoal.sealing.label import Label
from shoal.sealing.noise import NoisePoint

#: Why a driver does not seal an update whose version 0 is not the model of the job.
NOT_THE_SIGNED_MODEL = "version 0 is not the model that the operator signed"


@dataclass(frozen=True, kw_only=True, slots=True)
class SealRequest:
    #: The label without its ``base``.
    label: Label
    #: The digest of the model that this update was trained on, and its version and epoch, as this device had them.
    model: bytes
    version: int
    epoch: int
    group: MaskGraph
    place: int
    #: Bits per word: 32, or 16 under the codecs ``int16`` and ``led``.
    word_bits: int = 32
    #: Indices of the update that the words cover, ascending, or None if they cover all of it.
    places: np.ndarray | None = field(default=None, compare=False, repr=False)
    #: The update's largest length and the device's noise share, if the plan is private too.
    noise: NoisePoint | None = None
    #: The helper's name and public key, or None if members open sums.
    helper: tuple[str, bytes] | None = None
    #: Whether the words have a cover too, whose seed only the leader gets: a helper opens the sum, and aggregators add
    #: up the words.
    is_covered: bool = False
    update: np.ndarray = field(compare=False, repr=False)
    #: Figures of the training, each from 0 to 1. The leader learns only their mean over the group
    #: (``sealing.figures``). Empty if the plan is private.
    figures: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MasksRequest:
    """The request to a helper for the sum of some members' masks."""

    label: Label
    #: The helper's own name and public key.
    helper: tuple[str, bytes]
    #: Place of each member whose words are in the sum -> its envelope.
    envelopes: Mapping[int, bytes] = field(repr=False)
    #: Words in the sum, and bits per word.
    words: int
    word_bits: int = 32
