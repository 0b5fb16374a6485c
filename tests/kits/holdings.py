"""A model of a round of merges: which updates are in which partial, and which begin again when a holder is lost.

Each device keeps its own update until the round is over. A merge moves all that the sender holds to the receiver once
it has arrived in full; until then the sender holds it. A holder that is lost takes its partial with it: those in it
that live begin again with their own update. One that had handed its partial on before it was lost stays counted, as
long as the new holder lives. So nothing is ever in two partials, and everyone alive is in one.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import Misuse


class Holdings:
    def __init__(self, names: Sequence[str]) -> None:
        if not names or len(set(names)) < len(names):
            raise Misuse("a round begins with at least one device, each named once")
        #: Holder -> the names of those whose updates it holds. Its own is always among them.
        self._held: dict[str, list[str]] = {name: [name] for name in names}
        self._alive = dict.fromkeys(names)

    @property
    def holders(self) -> tuple[str, ...]:
        return tuple(self._held)

    @property
    def alive(self) -> tuple[str, ...]:
        return tuple(self._alive)

    def members(self, holder: str) -> tuple[str, ...]:
        """Whose updates are in its partial."""
        return tuple(self._held[holder])

    def merged(self, sender: str, receiver: str) -> None:
        """The receiver has everything of the sender's, who retires."""
        if sender == receiver or sender not in self._held or receiver not in self._held:
            raise Misuse(f"{sender} to {receiver}: both must hold a partial, and it takes two")
        self._held[receiver] += self._held.pop(sender)

    def lost(self, name: str) -> tuple[str, ...]:
        """Who begins again with its own update: those in its partial that live. Nobody, if it had retired."""
        self._alive.pop(name, None)
        again = tuple(member for member in self._held.pop(name, ()) if member in self._alive)
        self._held.update((member, [member]) for member in again)
        return again
