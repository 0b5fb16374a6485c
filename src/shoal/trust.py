"""Reads a plan's choice of trust, such as ``robust(nearest, 20%)``.

A text has parts, joined by ``+`` in this order, and each answers another question: ``robust``, how faulty or malicious
updates are outvoted; ``sealed``, who sees an update; ``private``, how much a model may leak about one person.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from shoal.errors import Misuse
from shoal.sealing.graph import GROUP_MAX

Rule = Literal["nearest", "clip"]

#: The allowed texts, for errors and help.
GRAMMAR = (
    "identity (devices with a certificate), or robust, robust(nearest), robust(nearest, 20%) with the share of devices"
    " that may be malicious, or robust(clip). Or sealed, sealed(8), sealed(8, 10%, 30%) with the devices of a sum and"
    " the shares of them that may collude and be lost. Or sealed(8, helper=NODE) with the node that opens sums for the"
    " leader, or sealed(8, 10%, 30%, members=100) with the number of devices that the operator signed as members. Or"
    " private(8), private(8, 1e-5) with the epsilon and the delta of a person. Or sealed + private(8), in which devices"
    " add the noise themselves, or robust(clip) + sealed, in which they clip their own updates"
)

#: The default share of devices that may be malicious.
SHARE = 0.2

#: The fewest devices for a rule that compares them: with two, nobody can decide which one is faulty.
DEVICES_LEAST = 3

#: The most devices whose updates a leader compares in one version. Their products are a square matrix of this size.
DEVICES_MAX = 256

#: The default momentum of devices under robust. Less noisy updates make it possible for a rule to tell malicious
#: devices from honest ones (Karimireddy 2021).
DEVICE_MOMENTUM = 0.9

#: How many times as many examples as another an update of a sealed sum may have: more would dominate the sum.
EXAMPLES_APART = 4

#: The default delta of ``private``: the probability that its guarantee fails.
DELTA = 1e-5

#: The warning about a sealed plan whose members no operator signed.
MANAGER_DECIDES = (
    "The manager decides who is a member. If it lies, or lends its key to the leader, it can surround a device with its"
    " own devices and read that device's update"
)

_SHARE = r"(\d{1,2}(?:\.\d{1,2})?)%"
_NUMBER = r"(\d{1,4}(?:\.\d{1,4})?(?:e-\d{1,2})?)"
#: In the order in which they are written.
_PARTS = {
    "robust": re.compile(rf"robust(?:\((nearest|clip)(?:, ?{_SHARE})?\))?", re.ASCII),
    "sealed": re.compile(
        rf"sealed(?:\((\d{{1,4}})(?:, ?{_SHARE}, ?{_SHARE})?(?:, ?helper=([a-z0-9][a-z0-9-]{{0,62}}))?"
        r"(?:, ?members=(\d{1,6}))?\))?",
        re.ASCII,
    ),
    "private": re.compile(rf"private\({_NUMBER}(?:, ?{_NUMBER})?\)", re.ASCII),
}
_TEXT_MAX_CHARS = 192


@dataclass(frozen=True, kw_only=True, slots=True)
class Sealed:
    """Updates are masked, and only their sum is opened."""

    #: The fewest devices whose sum is opened.
    least: int = 8
    #: The share of devices that may collude with the leader, and the share that may be lost in one version.
    colluding: float = 0.1
    lost: float = 0.3
    #: The node of somebody else that removes masks for the leader, or `None` if the devices do so together.
    helper: str | None = None
    #: The number of devices that an operator signed as members: only they may be in a group. None if the manager
    #: decides who is a member.
    members: int | None = None

    def liars_of(self, group: int) -> int:
        """Return how many devices of a group may collude.

        The leader chooses who is in a group, so it may put every colluding member into one. Their number is therefore a
        share of the signed members where there are any, and only otherwise a share of the group.
        """
        return math.ceil(round((group if self.members is None else self.members) * self.colluding, 9))


@dataclass(frozen=True, kw_only=True, slots=True)
class Private:
    """The model leaks next to nothing about one device's person: (epsilon, delta) differential privacy."""

    epsilon: float
    delta: float = DELTA


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """A plan's choice of trust."""

    text: str
    #: The robust aggregation rule, or `None` to trust every member.
    rule: Rule | None = None
    #: The share of devices that may be malicious under ``nearest``.
    share: float = 0.0
    #: The sealed sums, or `None` if the leader sees every update.
    sealed: Sealed | None = None
    #: The privacy bound, or `None` if nothing bounds what a model leaks about one person.
    private: Private | None = None

    @property
    def helper(self) -> str | None:
        """The node that opens sealed sums and does not train, or `None` if the plan names none."""
        return self.sealed.helper if self.sealed is not None else None

    @property
    def has_signed_members(self) -> bool:
        """Whether only devices that an operator signed may be in the groups of sealed sums."""
        return self.sealed is not None and self.sealed.members is not None

    @classmethod
    @functools.lru_cache(maxsize=64)
    def parse(cls, text: str) -> Trust:
        """Read a text. Raises Misuse for one that is not a choice Shoal has."""
        if text == "identity":
            return cls(text=text)
        read = _read(text)
        rule, share = _robust(text, read["robust"]) if "robust" in read else (None, 0.0)
        return cls(
            text=text,
            rule=rule,
            share=share,
            sealed=_sealed(text, read["sealed"]) if "sealed" in read else None,
            private=_private(text, read["private"]) if "private" in read else None,
        )


def _read(text: str) -> dict[str, re.Match[str]]:
    """Return the parts of a text by their names."""
    parts = [part.strip() for part in text.split("+")] if len(text) <= _TEXT_MAX_CHARS else [text]
    read: dict[str, re.Match[str]] = {}
    for part in parts:
        name = part.partition("(")[0]
        matched = _PARTS[name].fullmatch(part) if name in _PARTS else None
        if matched is None or name in read:
            raise Misuse(f"trust = {text[:_TEXT_MAX_CHARS]!r} is not a choice Shoal has; there is: {GRAMMAR}")
        read[name] = matched
    order = [name for name in _PARTS if name in read]
    if list(read) != order:
        raise Misuse(f"trust = {text!r}: write its parts in this order: {' + '.join(order)}")
    return read


def _robust(text: str, part: re.Match[str]) -> tuple[Rule, float]:
    if part[1] == "clip":
        if part[2]:
            raise Misuse(f"trust = {text!r}: clipping takes no share of devices: write robust(clip)")
        return "clip", 0.0
    share = float(part[2]) / 100 if part[2] else SHARE
    if not 0 < share < 0.5:
        raise Misuse(
            f"trust = {text!r}: no rule can find the malicious devices if they are half or more, and a share of 0 is"
            " trust = 'identity': name a share above 0 and below 50%, such as robust(nearest, 20%)"
        )
    return "nearest", share


def _sealed(text: str, part: re.Match[str]) -> Sealed:
    if not part[1]:
        return Sealed()
    least = int(part[1])
    if least < DEVICES_LEAST:
        raise Misuse(
            f"trust = {text!r}: a sum of {least} reveals each device's update to the others in it: name"
            f" {DEVICES_LEAST} or more, such as sealed(8)"
        )
    members = int(part[5]) if part[5] else None
    sealed = Sealed(least=least, helper=part[4], members=members)
    if part[2]:
        sealed = replace(sealed, colluding=float(part[2]) / 100, lost=float(part[3]) / 100)
    if sealed.colluding + sealed.lost >= 1:
        raise Misuse(f"trust = {text!r}: some devices have to be honest and connected: name shares below 100% together")
    if members is not None:
        _check_members(text, sealed, members)
    return sealed


def _check_members(text: str, sealed: Sealed, members: int) -> None:
    if members < sealed.least:
        raise Misuse(
            f"trust = {text!r}: {members} members cannot make a sum of {sealed.least} devices. Name at least"
            f" {sealed.least} members, and sign them with `shoal nodes approve`"
        )
    liars = sealed.liars_of(members)
    if liars + 2 > min(members, GROUP_MAX):
        raise Misuse(
            f"trust = {text!r}: {liars} of {members} members may collude, and a sum has at most"
            f" {min(members, GROUP_MAX)} devices, so that a sum may hide nobody. Name fewer members or a smaller share"
            " that may collude"
        )


def _private(text: str, part: re.Match[str]) -> Private:
    epsilon, delta = float(part[1]), float(part[2]) if part[2] else DELTA
    if not 0 < epsilon <= 100:
        raise Misuse(f"trust = {text!r}: epsilon is above 0, and 100 hides nothing: name 1 to 10, such as private(8)")
    if not 0 < delta < 0.01:
        raise Misuse(
            f"trust = {text!r}: delta is the probability that privacy fails: name less than one in the number of"
            " people, such as private(8, 1e-5)"
        )
    return Private(epsilon=epsilon, delta=delta)
