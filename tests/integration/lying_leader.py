"""A manager as it is, but for the leader of a sealed job, which lies: run as ``python -m lying_leader LIE DIARY --home
DIR ...``.

It speaks the protocol over the same sockets, to agents as they are. Where a lie takes away what the honest part of the
leader needs to go on, it makes that up. DIARY is a file of lines in JSON: what devices said, in order, and the sums
that were opened. It also has each update that the leader worked out, which a test compares with the truth.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shoal.roles.actions import Action, Send
from shoal.roles.events import Event, Received
from shoal.roles.leader.gathering.sealing import Sealing
from shoal.roles.leader.leader import Leader
from shoal.runtime import manager_main
from shoal.sealing import pair
from shoal.sealing.fixed import FixedPoint
from shoal.sealing.group import HELPER_ENVELOPE_BYTES, MAC_BYTES, SEED_BYTES, bits_of, members_of
from shoal.sealing.shamir import SHARE_BYTES, join
from shoal.sealing.stream import add_all
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
        #: The honest part.
        self.leader: Any = None
        #: What is to be said later: when, and what.
        self._later: list[tuple[float, Send]] = []

    def write(self, **told: object) -> None:
        with self._diary.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(told) + "\n")

    def hears(self, node: str, message: Message) -> Message:
        """What the honest part is to hear instead."""
        return message

    def says(self, node: str, message: Message) -> list[Message]:
        """What a device is told instead."""
        return [message]

    def say_later(self, after_s: float, node: str, message: Message) -> None:
        self._later.append((time.monotonic() + after_s, Send(to=node, message=message)))

    # How it is wired ---------------------------------------------------------------------------------------

    def due(self) -> list[Action]:
        now_s = time.monotonic()
        due = [send for at_s, send in self._later if at_s <= now_s]
        self._later = [each for each in self._later if each[0] > now_s]
        return list(due)

    def opened(self, weights: dict[str, int], total: np.ndarray, *, bound: int) -> None:
        """A sum was opened: of whom, with how many examples, and the sum of updates times examples."""
        self.write(sum_of=weights, total=[float(value) for value in total])

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


class SplitSets(Liar):
    """Of eight devices three are told sets of their own, five are told of all. All are asked to open, with every MAC
    and envelope that there is; then the leader takes off the first device's words whatever masks it came to know.

    Nobody colludes. Five is what agrees in a group of eight, so that the five open their sum.
    """

    SETS: ClassVar[dict[int, tuple[int, ...]]] = {0: (0, 1, 2), 1: (1, 2, 3), 2: (2, 3, 4)}
    SIZE = 8

    def __init__(self, diary: Path) -> None:
        super().__init__(diary)
        self._group = 0
        self._words: dict[int, tuple[np.ndarray, int]] = {}
        #: (who said it, for whom) -> the MAC, whatever set it is of.
        self._macs: dict[tuple[int, int], bytes] = {}
        self._edges: dict[tuple[int, int], bytes] = {}
        self._shares: dict[int, bytes] = {}

    def says(self, node: str, message: Message) -> list[Message]:
        if isinstance(message, Bind) and message.group != self._group:
            self._group, self._words, self._macs, self._edges, self._shares = message.group, {}, {}, {}, {}
        place = self._place(node)
        if isinstance(message, Agree) and place in self.SETS and len(self._words) == self.SIZE:
            return [replace(message, present=bits_of(self.SETS[place], self.SIZE))]
        if isinstance(message, Open) and place in self.SETS and len(self._words) == self.SIZE:
            others = [other for other in self.SETS[place] if other != place]
            group = self.leader._gathering._group
            envelopes = (group.graph.own_envelope(other, group.seals[other], place) for other in others)
            macs = b"".join(self._macs.get((other, place), bytes(MAC_BYTES)) for other in others)
            return [replace(message, macs=macs, envelopes=b"".join(envelopes), vanished=b"", vanished_envelopes=b"")]
        return [message]

    def hears(self, node: str, message: Message) -> Message:
        place = self._place(node)
        if isinstance(message, Update) and message.group and place is not None:
            self._words[place] = (np.array(message.tensors["words"]), message.examples)
        if not isinstance(message, Agreed | Opened) or place is None or len(self._words) < self.SIZE:
            return message
        told = self.SETS.get(place, tuple(range(self.SIZE)))
        # Wherever edges to those who are not in its set are told: with the agreement, or with the opening.
        edges = getattr(message, "edges", b"")
        for at, other in enumerate(other for other in range(self.SIZE) if other not in told):
            if edges:
                self._edges[place, other] = edges[SEED_BYTES * at :][:SEED_BYTES]
        if isinstance(message, Agreed):
            for at, other in enumerate(other for other in told if other != place):
                self._macs[place, other] = message.macs[MAC_BYTES * at :][:MAC_BYTES]
            if place in self.SETS:
                # The honest part goes on, and asks this device to open too.
                return replace(message, macs=bytes(MAC_BYTES * (self.SIZE - 1)))
        else:
            if place not in self.SETS:
                # The first share is that of the first device.
                self._shares[place + 1] = message.shares[:SHARE_BYTES]
            self._take_off()
        return message

    def _place(self, node: str) -> int | None:
        group = self.leader._gathering._group
        return group.place_of(node) if group is not None else None

    def _take_off(self) -> None:
        if len(self._shares) != self.SIZE - len(self.SETS):
            return
        label = self.leader._gathering._group.label
        own, key = join(self._shares), label.digest()
        assert own is not None
        known = {other: self._edges.get((0, other)) or self._edges.get((other, 0)) for other in range(1, self.SIZE)}
        words, examples = self._words[0]
        words = words.copy()
        edges = [(pair.mask_key(seed, key), True) for seed in known.values() if seed is not None]
        add_all(words, [(pair.mask_key(own, key), True), *edges])
        found = FixedPoint(label.bound, self.SIZE, 32).decode(words, times=label.weight_most / examples)
        node = self.leader._gathering._group.members[0]
        self.write(found=[float(value) for value in found], of=node, edges=len(edges))


class OneRate(Liar):
    """All devices but one are lent with a learning rate of next to nothing."""

    def says(self, node: str, message: Message) -> list[Message]:
        if isinstance(message, Work) and message.kind == "train" and node != "device-1":
            return [replace(message, rate=1e-30)]
        return [message]


class LossOracle(Liar):
    """One device is asked for the loss of one of its examples, under models that the leader makes up: two of them give
    its label, and each further one a value."""

    #: The first version is the one that the operator signed, so that a device compares it.
    BEGINS = 0

    def __init__(self, diary: Path) -> None:
        super().__init__(diary)
        self._asked = -1
        self._losses: list[float] = []

    def says(self, node: str, message: Message) -> list[Message]:
        is_asked = isinstance(message, Work) and message.kind == "train" and node == "device-1"
        if not is_asked or not isinstance(message, Work) or message.version < self.BEGINS:
            return [message]
        self._asked = len(self._losses)
        weight, bias = np.zeros((3, 2), np.float32), np.array([0, -50, -100], np.float32)
        if self._asked >= 2:
            label = round(self._losses[1] / 50)
            bias = np.zeros(3, np.float32)
            bias[(label + 1) % 3] = 50
            weight[label, (self._asked - 2) % 2] = 1
        return [self._lent(message, np.concatenate((weight.ravel(), bias)))]

    def _lent(self, work: Work, model: np.ndarray) -> Work:
        return replace(work, epoch=0, batches=(0,), examples=1, rate=1e-30, tensors={"model": model})

    def hears(self, node: str, message: Message) -> Message:
        if isinstance(message, Update) and node == "device-1" and message.group and self._asked == len(self._losses):
            self._losses.append(message.loss_sum)
            self.write(
                clear=[message.loss_sum, message.fresh, len(message.fresh_metrics), len(message.logged)],
                labels=len(message.labels),
            )
            if len(self._losses) == 4:
                row = [50 - self._losses[2], 50 - self._losses[3], round(self._losses[1] / 50)]
                self.write(row=row)
        return message


class LossOfALease(LossOracle):
    """Like ``LossOracle``, but with as many examples as the plan says and at its rate: no device can refuse that."""

    BEGINS = 1

    def _lent(self, work: Work, model: np.ndarray) -> Work:
        return replace(work, tensors={"model": model})


class SecondModel(Liar):
    """While all devices but one train, a model under an older term comes: no lease, but where it is received, the
    trainer reads what its update is the difference to. So these updates are as large as a word can say, whatever was
    trained, and the leader takes that off."""

    #: Into the training, which takes four seconds.
    AFTER_S = 1.5

    def says(self, node: str, message: Message) -> list[Message]:
        if isinstance(message, Work) and message.kind == "train" and node != "device-1":
            far = np.full(self.leader.model.size, -(2.0**38), np.float32)
            self.say_later(self.AFTER_S, node, replace(message, term=0, tensors={"model": far}))
        return [message]

    def opened(self, weights: dict[str, int], total: np.ndarray, *, bound: int) -> None:
        super().opened(weights, total, bound=bound)
        others = sum(examples for node, examples in weights.items() if node != "device-1")
        found = (total - 2.0**bound * others) / weights["device-1"]
        self.write(found=[float(value) for value in found], of="device-1")


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
        SplitSets,
        OneRate,
        LossOracle,
        LossOfALease,
        SecondModel,
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

    opened_sum = Sealing._opened_sum

    def noted(self: Any, group: Any) -> Any:
        weights = {report.lease.worker: report.update.examples for report in group.reports.values()}
        summed = opened_sum(self, group)
        if summed is not None:
            total = np.asarray(summed.mean, dtype=np.float64) * summed.weight
            liar.opened(weights, total, bound=group.label.bound)
        return summed

    def lying(self: Any, event: Event, now_s: float) -> list[Action]:
        liar.leader = self
        actions = handle(self, liar.heard(event), now_s)
        sealing = self._gathering
        if isinstance(sealing, Sealing) and isinstance(event, Received) and isinstance(event.message, HEARD):
            liar.write(opened=sealing.opened, void=sealing.void, version=self.version)
        return [told for action in actions for told in liar.said(action)] + liar.due()

    Sealing._opened_sum = noted  # type: ignore[method-assign]
    Leader.handle = lying  # type: ignore[method-assign]
    return manager_main.main()


if __name__ == "__main__":
    sys.exit(main())
