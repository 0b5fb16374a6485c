"""The device's own privacy account in a private job: how often it took part, and whether it may again. It decides.

A device does not rely on a leader for this. An update leaves once its participation is durable (``Participate`` ->
``Participated``), and a participation is never given back: not even if the update is refused, lost on its way, or never
sent. If updates are sealed, each group that one is sealed for is a participation, because a device cannot know whether
its group's sum was opened.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np

from shoal.compress.codec import Codec
from shoal.errors import Misuse
from shoal.learning.clipping import clipped, length_of
from shoal.learning.privacy import Privacy
from shoal.roles.actions import Participate
from shoal.roles.events import Participated
from shoal.roles.worker.machine import WorkerMachine
from shoal.wire.coded import Coded, code
from shoal.wire.messages import DeviceState, Update, Work

#: Attempts to shorten an update that rounding made longer than the bound.
_TRIES_MAX = 6


class Participation:
    def __init__(self, worker: WorkerMachine, privacy: Privacy | None) -> None:
        """``privacy`` is the plan's promise, or None if it has none: then nothing is counted."""
        self._worker = worker
        self._privacy = privacy
        #: (term, version) of every update that left, as it is on the disk.
        self._taken: list[tuple[int, int]] = []
        #: The epsilon that the device's owner leaves for this job.
        self._epsilon_left = math.inf
        #: (term, lease, group) of the update that is being counted, and of the last one that was counted.
        self._asked: tuple[int, int, int] | None = None
        self._counted: tuple[int, int, int] | None = None
        #: How many participations are not durable yet.
        self._under_way = 0

    @property
    def is_kept(self) -> bool:
        return self._privacy is not None

    def restore(self, taken: tuple[tuple[int, int], ...], *, epsilon_left: float = math.inf) -> None:
        """Restore the account that the driver read from the disk."""
        self._taken, self._epsilon_left = list(taken), epsilon_left

    def refusal(self, work: Work) -> str | None:
        """Return why the device must skip this version, or None if it may take part."""
        privacy = self._privacy
        if privacy is None or work.kind != "train":
            return None
        if (often := len(self._taken) + self._under_way) >= privacy.participations:
            return f"this device took part {often} times, of {privacy.participations} that the plan allows"
        last = self._last(work.term)
        if last is not None and work.version < last + privacy.apart:
            return (
                f"this device took part in version {last}, and takes part again {privacy.apart} versions later, not in"
                f" version {work.version}"
            )
        if not privacy.allows(self._counts(work.term)):
            return f"this device would spend more than the epsilon of {privacy.epsilon:g} that the plan promises it"
        if not self._owner_allows(work.term):
            return (
                f"this device would spend more than the epsilon of {max(0.0, self._epsilon_left):.3g} that its owner"
                " left for this job"
            )
        return None

    def is_counted(self, work: Work, *, group: int = 0) -> bool:
        """Whether the update of this lease is counted, or need not be."""
        return self._privacy is None or self._counted == (work.term, work.lease, group)

    def may_leave(self, work: Work, *, group: int = 0) -> bool:
        """Return ``is_counted``. If the update is not counted yet, has the driver make its participation durable."""
        what = (work.term, work.lease, group)
        if self.is_counted(work, group=group):
            return True
        if self._asked != what:
            self._asked = what
            self._under_way += 1
            self._worker.act(Participate(term=work.term, version=work.version, lease=work.lease, group=group))
        return False

    def on_counted(self, event: Participated) -> None:
        self._under_way = max(0, self._under_way - 1)
        self._taken.append((event.term, event.version))
        counted = (event.term, event.lease, event.group)
        # Another participation may have been requested since.
        self._asked, self._counted = None if self._asked == counted else self._asked, counted

    def on_not_counted(self) -> None:
        self._asked, self._under_way = None, max(0, self._under_way - 1)

    # Updates that leave ----------------------------------------------------------------------------------

    def cut(self, update: np.ndarray) -> np.ndarray:
        """Return the update, clipped if the plan is private."""
        return update if self._privacy is None else clipped(update, clip=self._privacy.clip)

    def code(self, codec: Codec, update: np.ndarray, sizes: tuple[int, ...]) -> Coded:
        """Return the update coded so that even after rounding it is no longer than the plan's bound."""
        coded = code(codec, update, sizes)
        if self._privacy is None:
            return coded
        for tried in range(_TRIES_MAX):
            sent = coded.values if isinstance(coded.values, np.ndarray) else coded.values.values
            length = length_of(sent)
            if length <= self._privacy.clip:
                return coded
            update = update * np.float32(self._privacy.clip / length * (1 - 1e-6 * 10**tried))
            coded = code(codec, update, sizes)
        raise Misuse(f"an update stays longer than {self._privacy.clip:g} as {codec.name}")

    def bare(self, update: Update, work: Work) -> Update:
        """Return the update without figures about the device's examples: no noise protects those."""
        if self._privacy is None:
            return update
        return dataclasses.replace(
            update, examples=max(1, work.examples), loss_sum=0.0, fresh=0, fresh_metrics=(), labels=(), logged=()
        )

    def told(self, state: DeviceState | None) -> DeviceState | None:
        """Return the state of the device with its account, so that the leader does not send leases it would decline."""
        privacy, term = self._privacy, self._worker.term
        if privacy is None:
            return state
        may_more = privacy.allows(self._counts(term)) and self._owner_allows(term)
        left = privacy.participations - len(self._taken) if may_more else 0
        return dataclasses.replace(
            state or DeviceState(),
            participations=len(self._taken),
            participations_left=max(0, left),
            spent=privacy.spent(list(Counter(term for term, _ in self._taken).values())),
            spent_version=self._last(term),
        )

    def _owner_allows(self, term: int) -> bool:
        """Whether one more participation stays within the epsilon that the owner leaves for this job."""
        privacy = self._privacy
        if privacy is None or self._epsilon_left == math.inf:
            return True
        return privacy.epsilon_of(privacy.spent(self._counts(term))) <= self._epsilon_left

    def _last(self, term: int) -> int | None:
        return max((version for at, version in self._taken if at == term), default=None)

    def _counts(self, term: int) -> list[int]:
        """Return the participations in each noise sequence, with one more in that of this term. A term has one leader,
        and a leader one sequence."""
        return list(Counter([term, *(at for at, _ in self._taken)]).values())
