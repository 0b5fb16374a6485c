"""One process per node: whether a second process of the same name may connect. Pure state that both drivers share.

A device that reconnects or restarts replaces its old process at once or after a moment. A second device with a copy of
its identity (its SD card was cloned after joining) may not: the two would disconnect each other forever.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shoal.roles.events import Liveness
from shoal.roles.node.failure_detector import FailureDetector

#: How the reason begins when the second device is refused: it then waits for minutes before it tries again.
TWICE = "two devices use the identity of"

#: How often the driver asks again for a process that has to wait.
LOOK_EVERY_S = 0.2


class Door(StrEnum):
    """Whether a process may connect."""

    OPEN = "open"
    #: The process before it may still be alive: ask again.
    WAIT = "wait"
    SHUT = "shut"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """A process that connects."""

    node: str
    #: Differs for each process.
    incarnation: str
    address: str


@dataclass(frozen=True, slots=True)
class Knock:
    """A process that wants to connect, and when a process of that name was last seen before, or `None` if never."""

    caller: Caller
    heard_s: float | None


class Doorway:
    def __init__(self, membership: FailureDetector) -> None:
        self._membership = membership
        #: Node -> the process that was let in last.
        self._inside: dict[str, Caller] = {}

    def knock(self, caller: Caller) -> Knock:
        return Knock(caller, self._membership.heard_s(caller.node))

    def ask(self, knock: Knock) -> tuple[Door, str | None]:
        """Return whether the process may connect, and why not. ``WAIT`` lasts until the process inside sends something
        or is suspect."""
        caller = knock.caller
        inside = self._inside.get(caller.node)
        if inside is None or inside.incarnation == caller.incarnation:
            return Door.OPEN, None
        if self._membership.state(caller.node) is not Liveness.ALIVE:
            return Door.OPEN, None
        if self._membership.heard_s(caller.node) == knock.heard_s:
            return Door.WAIT, None
        where = f"{inside.address or 'an unknown address'} and {caller.address or 'an unknown address'}"
        return Door.SHUT, (
            f"{TWICE} {caller.node}: {where}; make a new line with `shoal token create`, and run"
            " `shoal join LINE --anew` on one of them"
        )

    def is_taken(self, caller: Caller) -> bool:
        """Whether another process of this name is connected, as far as is known."""
        inside = self._inside.get(caller.node)
        return inside is not None and inside.incarnation != caller.incarnation

    def on_entered(self, caller: Caller) -> None:
        """Note that the control session of a process is open."""
        self._inside[caller.node] = caller
