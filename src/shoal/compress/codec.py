"""A codec by its name: which values of an update are sent, and how. ``wire.coded`` makes the bytes.

It needs neither numpy nor plans, so that a plan can check the name of its codec.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from shoal.errors import Misuse

Form = Literal["dense", "fp16", "bf16", "int16", "led", "top"]

#: The names of codecs, for errors and help.
GRAMMAR = (
    "dense, fp16 or bf16 (+ef for either of these), int16, led5%+ef (any percentage) for sealed updates, or top and a"
    " percentage, as in top1% or top0.1%, then +ef for error feedback and +2bit to +8bit for coarse values, as in"
    " top1%+ef+4bit"
)

_SHARE = re.compile(r"(top|led)(\d{1,3}(?:\.\d{1,4})?)%", re.ASCII)
_BITS = re.compile(r"([2-8])bit", re.ASCII)
_NAME_MAX_CHARS = 40
_PPM_PER_PERCENT = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Codec:
    """What is sent. Error feedback is told here and held by the sender: what arrives says the same with and without."""

    name: str
    form: Form
    #: Of ``top``: how much of each tensor, in parts of a million; of ``led``: how much of the model.
    share_ppm: int = 0
    #: Of ``top``, ``led`` and ``int16``: bits of a value; 32 are the float32 it is.
    bits: int = 32
    feedback: bool = False

    @classmethod
    @lru_cache(maxsize=256)
    def parse(cls, name: str) -> Codec:
        """Read a name. Parts come in one order, so that one codec has one name: ``top1%+ef+4bit``."""
        first, *rest = name.split("+") if len(name) <= _NAME_MAX_CHARS else [name]
        feedback = rest[:1] == ["ef"]
        rest = rest[feedback:]
        if share := _SHARE.fullmatch(first):
            share_ppm = _ppm(share[2])
            bits = _BITS.fullmatch(rest[0]) if len(rest) == 1 else None
            if not 1 <= share_ppm <= 100 * _PPM_PER_PERCENT or (rest and not bits):
                raise _unknown(name)
            if share[1] == "led":
                if rest or not feedback:
                    # At places that others chose too, a device without feedback would say next to nothing.
                    raise _unknown(name)
                return cls(name=name, form="led", share_ppm=share_ppm, bits=16, feedback=True)
            return cls(name=name, form="top", share_ppm=share_ppm, bits=int(bits[1]) if bits else 32, feedback=feedback)
        if first == "dense" and not feedback and not rest:
            return cls(name=name, form="dense")
        if first == "int16" and not feedback and not rest:
            return cls(name=name, form="int16", bits=16)
        if first == "fp16" and not rest:
            return cls(name=name, form="fp16", feedback=feedback)
        if first == "bf16" and not rest:
            return cls(name=name, form="bf16", feedback=feedback)
        raise _unknown(name)

    @property
    def word_bits(self) -> int:
        """Bits per word if updates are sealed, or 0 if this codec cannot be masked."""
        return {"dense": 32, "int16": 16, "led": 16}.get(self.form, 0)

    @property
    def is_sealed_only(self) -> bool:
        """Whether its values are words of a sealed sum, which cannot be sent unsealed."""
        return self.form == "led"

    def __str__(self) -> str:
        return self.name


def _ppm(percent: str) -> int:
    """Return the share that a percentage with at most four decimal places is, exactly."""
    whole, _, part = percent.partition(".")
    return int(whole) * _PPM_PER_PERCENT + int(part.ljust(4, "0"))


def _unknown(name: str) -> Misuse:
    return Misuse(f"no codec is called {name[:_NAME_MAX_CHARS]!r}: there is {GRAMMAR}")
