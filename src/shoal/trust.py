"""Who is believed, by its text: a choice of a plan such as ``robust(nearest, 20%)``. A value; knows no updates.

A text has parts, joined by ``+``, and each answers another question: ``robust``, how updates that lie are outvoted;
``sealed``, who sees an update; ``private``, what a model tells of one person. This release has the first.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Literal

from shoal.errors import Misuse

Rule = Literal["nearest", "clip"]

#: What a person may write, for errors and help.
GRAMMAR = (
    "identity (devices with a certificate), or robust, robust(nearest), robust(nearest, 20%) with the share of devices"
    " that may lie, or robust(clip)"
)

#: The share of devices that may lie where a plan does not say.
SHARE = 0.2

#: A rule that compares devices needs so many: of two, nobody can tell which one lies.
DEVICES_LEAST = 3

#: Devices whose updates a leader compares in one version. Their products are a matrix of so many rows and columns.
DEVICES_MAX = 256

#: What a device keeps of its last update under robust, where a plan does not say: how noisy updates are decides whether
#: any rule can tell a liar from an honest device (Karimireddy 2021).
DEVICE_MOMENTUM = 0.9

_ROBUST = re.compile(r"robust(?:\((nearest|clip)(?:, ?(\d{1,2}(?:\.\d{1,2})?)%)?\))?", re.ASCII)
_PLANNED = re.compile(r"(sealed|private)(?:\(.*\))?", re.ASCII)
_TEXT_MAX_CHARS = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """What a text says."""

    text: str
    #: The rule by which liars are outvoted; None: every member is believed.
    rule: Rule | None = None
    #: Of ``nearest``: the share of devices that may lie.
    share: float = 0.0

    @classmethod
    @functools.lru_cache(maxsize=64)
    def parse(cls, text: str) -> Trust:
        """Read a text. Raises Misuse for one that says nothing Shoal has."""
        if text == "identity":
            return cls(text=text)
        parts = [part.strip() for part in text.split("+")] if len(text) <= _TEXT_MAX_CHARS else [text]
        for part in parts:
            if planned := _PLANNED.fullmatch(part):
                raise Misuse(
                    f"trust = {text!r}: {planned[1]!r} does not exist yet. Shoal has {GRAMMAR}. Until it does, the"
                    " leader sees every update: let a machine of yours lead"
                )
        robust = _ROBUST.fullmatch(parts[0]) if len(parts) == 1 else None
        if robust is None:
            raise Misuse(f"trust = {text[:_TEXT_MAX_CHARS]!r} is not a choice Shoal has; there is: {GRAMMAR}")
        if robust[1] == "clip":
            if robust[2]:
                raise Misuse(f"trust = {text!r}: clipping bears no stated share of liars: write robust(clip)")
            return cls(text=text, rule="clip")
        share = float(robust[2]) / 100 if robust[2] else SHARE
        if not 0 < share < 0.5:
            raise Misuse(
                f"trust = {text!r}: no rule can tell liars from honest devices where half of them or more lie, and a"
                " share of 0 is trust = 'identity': name a share above 0 and below 50%, such as robust(nearest, 20%)"
            )
        return cls(text=text, rule="nearest", share=share)
