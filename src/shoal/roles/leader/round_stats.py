"""The pulse of a job: how its rounds go as its leader sees them, and whether one more worker would help.

Pure state, fed with each merged update and each version. It makes of them what ``topology.saturation`` judges, soundly:

- A synchronous round is one lease of each worker: lent at one moment, all merged, nothing amiss meanwhile. A round that
  was cut short by the end of an epoch, or in which a worker came, went, failed or was late, says nothing about the
  link; nor does the first round after an evaluation, for which no worker is sent the model.
- Where no worker waits for others (``buffered``, ``async``) a round is as many updates as there are workers, while all
  of them are busy. Each has one lease at any time, so by Little's law a round takes as long as a lease in the mean.

Is the link slow, or a device? The leader does not see when a link is idle; but it knows how long each lease took, and
how much of that was training. It estimates the wait for stragglers as the time by which the round would have been
shorter if no worker had trained for longer than a typical lease does: from the time of each lease, the training beyond
the typical is cut off, and the longest remaining time is compared with the longest time. While others queue for the
link the difference is nothing, however slow the last worker trained; while the link is free, it is all that the slowest
took longer. It is never longer than that. Where no worker waits, it is the mean of the times that were cut off.

Typical is the median of the medians of recent rounds. Sizes are compared as if they trained alike, so the comparison
starts again once a typical lease takes another time than at its beginning: devices of another kind joined, or got hot.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

import numpy as np

from shoal.roles.machine import Machine
from shoal.scheduling.ledger import Lease
from shoal.topology.saturation import GAINS, UNSURE, Gain, Round, Saturation, SaturationVerdict, crew, percent

#: Rounds whose medians give the typical time of training.
_TYPICAL_ROUNDS = 15
#: A typical lease that takes this many times as long as before, or as short, is of another kind of training.
_ANOTHER_KIND = 1.25
#: People are shown the median of so many rounds.
_SHOWN_ROUNDS = 9

#: What a leader records that makes a round unlike others. The rest (a save, an epoch) does not, or ends no round.
_DISTURBS = frozenset(
    (
        "device.joined",
        "worker.lost",
        "device.released",
        "lease.expired",
        "lease.returned",
        "lease.failed",
        "preparation.failed",
        "update.rejected",
        "job.evaluated",
        "job.resumed",
        "end.decided",
        "topology.changed",
    )
)


@dataclass(frozen=True, slots=True)
class _Leases:
    """Those of one round: how long each took until its update was here, and how long of that it trained."""

    leases_s: np.ndarray
    trainings_s: np.ndarray

    def beyond_s(self, typical_s: float) -> np.ndarray:
        """What each trained longer than is typical."""
        return np.maximum(0.0, self.trainings_s - typical_s)


class _Gathering:
    """Leases of the round in progress. As plain lists: this is touched for every update."""

    def __init__(self) -> None:
        self._leases_s: list[float] = []
        self._trainings_s: list[float] = []
        #: Something happened that makes this round unlike others.
        self.is_disturbed = False

    def __len__(self) -> int:
        return len(self._leases_s)

    def add(self, lease_s: float, train_s: float) -> None:
        self._leases_s.append(lease_s)
        # A worker's word for its training is bounded by what its leader saw.
        self._trainings_s.append(min(train_s, lease_s))

    def take(self) -> _Leases:
        taken = _Leases(np.array(self._leases_s), np.array(self._trainings_s))
        self._leases_s.clear()
        self._trainings_s.clear()
        self.is_disturbed = False
        return taken


class _Together:
    """Rounds of a pace in which every worker waits for every other."""

    def __init__(self) -> None:
        self.gathering = _Gathering()
        self._issued_s = 0.0

    def merged(self, issued_s: float, lease_s: float, train_s: float, *, workers: int, others: int) -> _Leases | None:
        if not len(self.gathering):
            self._issued_s = issued_s
        elif issued_s != self._issued_s:
            # A worker began later than the rest.
            self.gathering.is_disturbed = True
        self.gathering.add(lease_s, train_s)
        return None

    def stepped(self, *, workers: int) -> _Leases | None:
        """The round that this version ends, if it counts."""
        is_sound = not self.gathering.is_disturbed and len(self.gathering) == workers > 0
        taken = self.gathering.take()
        return taken if is_sound else None

    def took_s(self, done: _Leases) -> float:
        """From one version to the next, which is until the last lease came."""
        return float(done.leases_s.max())

    def wait_s(self, done: _Leases, *, typical_s: float) -> float:
        return self.took_s(done) - float((done.leases_s - done.beyond_s(typical_s)).max())


class _Flowing:
    """Rounds of a pace in which no worker waits for another."""

    def __init__(self) -> None:
        self.gathering = _Gathering()
        self._workers = 0
        #: Updates to pass over: after a disturbance the workers are out of their usual step for a round.
        self._skip = 0

    def merged(self, issued_s: float, lease_s: float, train_s: float, *, workers: int, others: int) -> _Leases | None:
        if self.gathering.is_disturbed or workers != self._workers or others < workers - 1:
            self.gathering.take()
            self._workers = self._skip = workers
        elif self._skip:
            self._skip -= 1
        else:
            self.gathering.add(lease_s, train_s)
        return self.gathering.take() if len(self.gathering) == workers else None

    def stepped(self, *, workers: int) -> _Leases | None:
        return None

    def took_s(self, done: _Leases) -> float:
        return float(done.leases_s.mean())

    def wait_s(self, done: _Leases, *, typical_s: float) -> float:
        return float(done.beyond_s(typical_s).mean())


class RoundStats:
    """Hears of merges and versions; says how long a round takes and what the last worker to join brought."""

    def __init__(self, machine: Machine, *, pace: str) -> None:
        self._machine = machine
        self.restart(pace)

    def restart(self, pace: str) -> None:
        """The job goes on at another pace: forget every round."""
        self._rounds: _Together | _Flowing = _Together() if pace == "sync" else _Flowing()
        self._typicals_s: deque[float] = deque(maxlen=_TYPICAL_ROUNDS)
        self._shown: deque[tuple[float, float]] = deque(maxlen=_SHOWN_ROUNDS)
        self._begin_anew()
        #: The last verdict that was recorded.
        self._told: str | None = None
        #: When the last version was made, and whether the round it ended was like others.
        self._stepped_s = 0.0
        self._was_sound = False

    def _begin_anew(self) -> None:
        self._saturation = Saturation()
        #: What was typical when the comparison began; 0 until that is known.
        self._reference_s = 0.0
        self._counted = 0
        self._looked_at = 0
        self._decision = SaturationVerdict(verdict=UNSURE, size=None, reason="")

    # What happens --------------------------------------------------------------------------------------

    def on_merged(self, lease: Lease, *, train_s: float, workers: int, others: int) -> None:
        """A lease was merged; ``others`` of the ``workers`` are at work besides its own."""
        lease_s = max(0.0, self._machine.now_s - lease.issued_s)
        self._count(self._rounds.merged(lease.issued_s, lease_s, train_s, workers=workers, others=others))

    def on_version(self, *, workers: int) -> float | None:
        """Every merged update is in a version. Returns the seconds since the version before, if both rounds count."""
        now_s = self._machine.now_s
        done = self._rounds.stepped(workers=workers)
        self._count(done)
        took_s, was_sound = now_s - self._stepped_s, self._was_sound
        self._stepped_s, self._was_sound = now_s, done is not None
        if not was_sound or done is None:
            return None
        if self._shown and took_s > self._shown[-1][0]:
            # Where aggregators sum up, a version takes longer than the longest of its leases.
            lease_s, sync_s = self._shown[-1]
            self._shown[-1] = (took_s, sync_s + took_s - lease_s)
        return took_s

    def on_record(self, kind: str) -> None:
        """The leader recorded a decision of this kind."""
        if kind in _DISTURBS:
            self._rounds.gathering.is_disturbed = True
            self._was_sound = False
        if kind == "topology.changed":
            # Other links are in use now.
            self._begin_anew()
            self._shown.clear()

    def _count(self, done: _Leases | None) -> None:
        if done is None or (took_s := self._rounds.took_s(done)) <= 0:
            return
        train_s = float(np.median(done.trainings_s))
        self._typicals_s.append(train_s)
        typical_s = median(self._typicals_s)
        self._compare_kind(typical_s)
        wait_s = min(self._rounds.wait_s(done, typical_s=typical_s), 0.99 * took_s)
        sync_s = min(took_s, max(wait_s, took_s - train_s))
        self._saturation.add(Round(workers=len(done.leases_s), batch_s=took_s, sync_s=sync_s, wait_s=wait_s))
        self._shown.append((took_s, sync_s))
        self._counted += 1

    def _compare_kind(self, typical_s: float) -> None:
        """Forget what was measured if training is another thing now."""
        if len(self._typicals_s) < _TYPICAL_ROUNDS:
            return
        before_s = self._reference_s
        if before_s and not before_s / _ANOTHER_KIND <= typical_s <= before_s * _ANOTHER_KIND:
            self._begin_anew()
        self._reference_s = self._reference_s or typical_s

    # What comes of it ----------------------------------------------------------------------------------

    def look(self) -> str | None:
        """Judge again, if a round was counted. Returns a reason to record: saturated, or no longer."""
        if self._counted == self._looked_at:
            return None
        self._looked_at = self._counted
        self._decision = self._saturation.decide()
        verdict = self._decision.verdict
        if verdict == self._told or verdict == UNSURE or (verdict == GAINS and not self._told):
            return None
        self._told = verdict
        return self.reason

    @property
    def decision(self) -> SaturationVerdict:
        return self._decision

    @property
    def verdict(self) -> str:
        """``saturated``, ``gains`` or ``unsure``; empty while no round was counted."""
        return self._decision.verdict if self._decision.reason else ""

    @property
    def reason(self) -> str:
        """The verdict and what speaks for it, in one line for people."""
        if self._decision.size is not None:
            return _saturated(self._decision.size, self._decision.gains[0])
        return self._decision.reason

    @property
    def saturated_at(self) -> int:
        """The size from which on more workers bring too little; 0 if there is none, or none yet."""
        return self._decision.size or 0

    @property
    def round_s(self) -> float:
        """A round of late, from one version to the next; 0 while none was counted."""
        return median(took_s for took_s, _ in self._shown) if self._shown else 0.0

    @property
    def sync_s(self) -> float:
        """Of it, what was not training: models and updates under way, and waiting."""
        return median(sync_s for _, sync_s in self._shown) if self._shown else 0.0


def _saturated(size: int, last: Gain) -> str:
    """That they bring too little was seen on the last to join; from which size on they do is an estimate then."""
    gains = f"gains {percent(last.gain)} ± {percent(last.margin)}"
    if size == last.workers:
        return f"saturated at {crew(size)}: one more {gains}"
    return f"saturated at about {crew(size)}: one more than {last.workers} {gains}"
