"""One process a node: whether another one under the same name may come in. Pure state that both drivers share.

A device that reconnects, or restarts, takes its own place at once or after a moment. Another device with a copy of its
identity, as an SD card that was cloned after joining makes one, does not: it would throw the first one out, and be
thrown out by it, without an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shoal.roles.events import Liveness
from shoal.roles.membership import Membership

#: How the reason begins for which the second of two is refused: it waits for minutes before it tries again.
TWICE = "two devices use the identity of"

#: How often one that waits at the door is looked at again.
LOOK_EVERY_S = 0.2


class Door(StrEnum):
    OPEN = "open"
    #: The process before is to show whether it lives: look again.
    WAIT = "wait"
    SHUT = "shut"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    node: str
    #: A new one for each process.
    incarnation: str
    address: str


@dataclass(frozen=True, slots=True)
class Knock:
    """A process that wants to come in, and when the one of that name was last heard then."""

    caller: Caller
    heard_s: float


class Doorway:
    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        #: Node -> the process that was let in last.
        self._inside: dict[str, Caller] = {}

    def knock(self, caller: Caller) -> Knock:
        return Knock(caller, self._membership.heard_s(caller.node))

    def ask(self, knock: Knock) -> tuple[Door, str]:
        """Whether it may come in, and why not. The answer ``WAIT`` ends when the one inside speaks or is suspected."""
        caller = knock.caller
        inside = self._inside.get(caller.node)
        if inside is None or inside.incarnation == caller.incarnation:
            return Door.OPEN, ""
        if self._membership.state(caller.node) is not Liveness.ALIVE:
            return Door.OPEN, ""
        if self._membership.heard_s(caller.node) == knock.heard_s:
            return Door.WAIT, ""
        where = f"{inside.address or 'an unknown address'} and {caller.address or 'an unknown address'}"
        return Door.SHUT, (
            f"{TWICE} {caller.node}: {where}; make a new line with `shoal token create`, and run"
            " `shoal join LINE --anew` on one of them"
        )

    def entered(self, caller: Caller) -> None:
        """Its control session is open."""
        self._inside[caller.node] = caller
