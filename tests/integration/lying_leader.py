"""A manager as it is, but for the leader of a sealed job, which lies: run as ``python -m lying_leader LIE DIARY --home
DIR ...``.

It speaks the protocol over the same sockets, to agents as they are. Where a lie takes away what the honest part of the
leader needs to go on, it makes that up. DIARY is a file of lines in JSON: what it heard of its devices, in order, and
how many sums it opened.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.roles.actions import Action, Send
from shoal.roles.events import Event, Received
from shoal.roles.leader.leader import Leader
from shoal.runtime import manager_main
from shoal.sealing.group import HELPER_ENVELOPE_BYTES, MAC_BYTES, bits_of, members_of
from shoal.wire.coded import encode_places
from shoal.wire.messages import (
    Agree,
    Agreed,
    AskMasks,
    Bind,
    MaskSum,
    Message,
    Open,
    Opened,
    SealRefused,
    SealRoster,
    Update,
    Work,
)

HEARD = (Update, Agreed, Opened, SealRefused, MaskSum)


class Liar:
    """Tells each device what it likes. Subclasses are lies."""

    def __init__(self, diary: Path) -> None:
        self._diary = diary
        self._size = 0

    def write(self, **told: object) -> None:
        with self._diary.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(told) + "\n")

    def hears(self, node: str, message: Message) -> Message:
        """What the honest part is to hear instead."""
        return message

    def says(self, node: str, message: Message) -> list[Message]:
        """What a device is told instead."""
        return [message]

    # How it is wired ---------------------------------------------------------------------------------------

    def heard(self, event: Event) -> Event:
        if not isinstance(event, Received) or not isinstance(event.message, HEARD):
            return event
        told = event.message
        if not isinstance(told, Update) or told.group:
            edges, reason = getattr(told, "edges", b""), getattr(told, "reason", "")
            self.write(heard=type(told).__name__, node=event.sender, group=told.group, edges=len(edges), reason=reason)
        return replace(event, message=self.hears(event.sender, told))

    def said(self, action: Action) -> list[Action]:
        if not isinstance(action, Send):
            return [action]
        if isinstance(action.message, Agree):
            self._size = sum(byte.bit_count() for byte in action.message.present)
        return [replace(action, message=told) for told in self.says(action.to, action.message)]


class TwoSets(Liar):
    """Every second device is told that the last one of them is not in the sum."""

    def says(self, node: str, message: Message) -> list[Message]:
        if isinstance(message, Agree) and self._is_fooled(node):
            return [replace(message, present=bits_of(range(self._size - 1), self._size))]
        return [message]

    def hears(self, node: str, message: Message) -> Message:
        if isinstance(message, Agreed) and self._is_fooled(node):
            # A MAC is missing, and there is an edge that nobody asked for.
            return replace(message, macs=message.macs + bytes(MAC_BYTES))
        return message

    @staticmethod
    def _is_fooled(node: str) -> bool:
        return int(node.rpartition("-")[2]) % 2 == 1


class OtherKey(Liar):
    """The first device of a roster has a key that the leader made."""

    def says(self, node: str, message: Message) -> list[Message]:
        if isinstance(message, SealRoster):
            first = replace(message.keys[0], public=bytes([9]) * 32)
            return [replace(message, keys=(first, *message.keys[1:]))]
        return [message]


class AliveAndLost(Liar):
    """A device that agreed to all members is asked again, as if the last one of them were lost."""

    def says(self, node: str, message: Message) -> list[Message]:
        if isinstance(message, Agree):
            return [message, replace(message, present=bits_of(range(self._size - 1), self._size))]
        return [message]


class OldQuestions(Liar):
    """With each new group, a device is asked once more all that it was asked about the one before."""

    def __init__(self, diary: Path) -> None:
        super().__init__(diary)
        self._asked: dict[str, list[Message]] = {}

    def says(self, node: str, message: Message) -> list[Message]:
        if isinstance(message, Bind):
            before, self._asked[node] = self._asked.get(node, []), [message]
            if before:
                self.write(replayed=[type(each).__name__ for each in before], node=node, group=message.group)
            return [message, *before]
        if isinstance(message, Agree | Open):
            self._asked.setdefault(node, []).append(message)
        return [message]


class TwoModels(Liar):
    """One device trains on another model."""

    def says(self, node: str, message: Message) -> list[Message]:
        if isinstance(message, Work) and node.endswith("-1") and "model" in message.tensors:
            other = np.array(message.tensors["model"]) + np.float32(1)
            return [replace(message, tensors={"model": other})]
        return [message]


class OtherPlaces(Liar):
    """One device is told other places than the rest, as many as the plan says."""

    def says(self, node: str, message: Message) -> list[Message]:
        if isinstance(message, Bind) and node.endswith("-1"):
            return [replace(message, tensors=encode_places(np.arange(60), 200))]
        return [message]


def _of_fewer(ask: AskMasks, count: int) -> AskMasks:
    """The same question about the first of its members alone."""
    size = 8 * len(ask.present)
    few = members_of(ask.present, size)[:count]
    return replace(ask, present=bits_of(few, size), envelopes=ask.envelopes[: count * HELPER_ENVELOPE_BYTES])


class AsksTwice(Liar):
    """The helper is asked about each group once more, without one device, before and after the next version."""

    def __init__(self, diary: Path) -> None:
        super().__init__(diary)
        self._before: list[Message] = []

    def says(self, node: str, message: Message) -> list[Message]:
        if not isinstance(message, AskMasks):
            return [message]
        again = _of_fewer(message, len(message.envelopes) // HELPER_ENVELOPE_BYTES - 1)
        before, self._before = self._before, [again]
        return [message, again, *before]


class AsksAboutFew(Liar):
    """The helper is asked about three devices alone."""

    def says(self, node: str, message: Message) -> list[Message]:
        return [_of_fewer(message, 3)] if isinstance(message, AskMasks) else [message]


class OldEnvelopes(Liar):
    """The helper is given what devices told it of the first group, again and again."""

    def __init__(self, diary: Path) -> None:
        super().__init__(diary)
        self._first = b""

    def says(self, node: str, message: Message) -> list[Message]:
        if not isinstance(message, AskMasks):
            return [message]
        self._first = self._first or message.envelopes
        return [replace(message, envelopes=self._first)]


LIES: dict[str, Callable[[Path], Liar]] = {
    lie.__name__: lie
    for lie in (
        TwoSets,
        OtherKey,
        AliveAndLost,
        OldQuestions,
        TwoModels,
        OtherPlaces,
        AsksTwice,
        AsksAboutFew,
        OldEnvelopes,
    )
}


def main() -> int:
    liar = LIES[sys.argv.pop(1)](Path(sys.argv.pop(1)))
    handle = Leader.handle

    def lying(self: Any, event: Event, now_s: float) -> list[Action]:
        actions = handle(self, liar.heard(event), now_s)
        sealing = self._sealing
        if sealing is not None and isinstance(event, Received) and isinstance(event.message, HEARD):
            liar.write(opened=sealing.opened, void=sealing.void, version=self.version)
        return [told for action in actions for told in liar.said(action)]

    Leader.handle = lying  # type: ignore[method-assign]
    return manager_main.main()


if __name__ == "__main__":
    sys.exit(main())
