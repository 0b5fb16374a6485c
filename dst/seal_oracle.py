"""The statements that devices may make about sealed updates, checked on what they do. Shares no code with the roles.

No label is used twice by a device, whatever died in between; no device opens a sum of fewer than the plan says, or
agrees to two sets of members under one label; no update leaves sealed for two groups; and only masked words leave a
device, without any figure of its training. A device trains with the rate that the plan has for the version.
Where a sum has some places alone, they are the same for all its devices, and what a device adds to an update is what it
held back of those before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dst.privacy_oracle import smallest_sum
from shoal.roles.actions import Seal, Send, Train
from shoal.roles.events import Received, Started, Trained, UpdateSealed
from shoal.sealing.device import rounding_of
from shoal.sealing.fixed import FixedPoint
from shoal.sealing.label import Label
from shoal.sealing.request import SealRequest
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.wire.coded import decode_places
from shoal.wire.messages import Agree, Agreed, Bind, Failed, JobSpec, Opened, Update, UpdateShard


class LabelCount:
    """The labels that devices seal under, and how many of these seals a device made under a label it had used before.
    Watches a simulation by itself, or for the oracle."""

    def __init__(self) -> None:
        self.used = self.twice = 0
        #: (job, term) under which anything was sealed: above one of a job, a leader died or moved in between.
        self.terms: set[tuple[str, int]] = set()
        #: (node, what makes a mask but the model).
        self._labels: set[tuple[str, bytes]] = set()

    def mark(self, mark: Mark) -> None:
        pass

    def step(self, step: Step) -> None:
        for action in step.actions:
            if isinstance(action, Seal):
                self.add(step.node, action.request.label)

    def add(self, node: str, label: Label) -> bool:
        """Whether this device uses this label for the first time."""
        # By the digest that masks are made of, so that a part that is missing there is missed here.
        used = (node, label.digest())
        is_new = used not in self._labels
        self._labels.add(used)
        self.used += 1
        self.twice += not is_new
        self.terms.add((label.job, label.term))
        return is_new


class SealOracle:
    def __init__(self, specs: Sequence[JobSpec], *, is_led_honestly: bool = True) -> None:
        """``is_led_honestly``: devices are told the same places. A leader that lies may tell each device others."""
        self._least = {spec.job: smallest_sum(spec.plan) for spec in specs if spec.plan.believes.sealed}
        self._labels = LabelCount()
        #: (node, job, term, group) -> its lease; the set that was agreed to; its update.
        self._leases: dict[tuple[str, str, int, int], int] = {}
        self._agreed: dict[tuple[str, str, int, int], tuple[bytes, bytes]] = {}
        self._updates: dict[tuple[str, str, int, int], np.ndarray] = {}
        #: (node, job, term, lease) -> the group for which its words left.
        self._left: dict[tuple[str, str, int, int], int] = {}
        self._plans = {spec.job: spec.plan for spec in specs}
        self._is_led_honestly = is_led_honestly
        self._rests = RestOracle({spec.job: spec.plan.clip_update for spec in specs if spec.plan.is_cut_unseen})

    def mark(self, mark: Mark) -> None:
        pass

    def step(self, step: Step) -> None:
        if step.job not in self._least:
            return
        if self._is_led_honestly:
            self._rests.step(step)
        if step.role != "worker":
            return
        for action in step.actions:
            if isinstance(action, Seal):
                self._sealed(step, action)
            elif isinstance(action, Train):
                rate = self._plans[step.job].rate_at(action.version)
                self._hold(action.rate == rate, step, f"{step.node} trained with a rate of {action.rate}, not {rate}")
            elif isinstance(action, Send):
                self._said(step, action.message)

    def _sealed(self, step: Step, action: Seal) -> None:
        label = action.request.label
        self._hold(self._labels.add(step.node, label), step, f"label {label.turn} was used before by {step.node}")
        self._hold(
            len(label.members) >= self._least[step.job], step, f"{step.node} sealed among {len(label.members)} devices"
        )
        key = (step.node, step.job, label.term, label.group)
        self._leases[key], self._updates[key] = action.lease, action.request.update

    def _said(self, step: Step, message: object) -> None:
        match message:
            case Update() | UpdateShard():
                update = self._updates.get((step.node, step.job, message.term, message.group))
                carries = {"words"} if isinstance(message, UpdateShard) else {"words", "seals"}
                if isinstance(message, Update) and message.formation:
                    carries = {"seals"}
                is_masked = set(message.tensors) == carries and update is not None
                self._hold(is_masked, step, f"{step.node} sent lease {message.lease} without masks")
                lease = (step.node, step.job, message.term, message.lease)
                first = self._left.setdefault(lease, message.group)
                self._hold(first == message.group, step, f"{step.node} sealed an update for groups {first} and again")
                if isinstance(message, Update):
                    told = (message.loss_sum, message.fresh, message.fresh_metrics, message.labels, message.logged)
                    self._hold(not any(told), step, f"{step.node} told figures of lease {message.lease}: {told}")
            case Failed():
                is_silent = not message.diverged and not message.traceback
                self._hold(is_silent or not message.lease, step, f"{step.node} told how lease {message.lease} failed")
            case Agreed():
                self._agreed_to(step, message)
            case Opened():
                key = (step.node, step.job, message.term, message.group)
                self._hold(key in self._agreed, step, f"{step.node} opened group {message.group} and had not agreed")
            case _:
                pass

    def _agreed_to(self, step: Step, message: Agreed) -> None:
        asked = step.event.message if isinstance(step.event, Received) else None
        present = asked.present if isinstance(asked, Agree) else b""
        self._hold(
            sum(byte.bit_count() for byte in present) >= self._least[step.job],
            step,
            f"{step.node} agreed to a sum of too few",
        )
        key = (step.node, step.job, message.term, message.group)
        said = (present, message.macs)
        self._hold(self._agreed.setdefault(key, said) == said, step, f"{step.node} agreed to two sets")

    @staticmethod
    def _hold(holds: bool, step: Step, what: str) -> None:
        if not holds:
            raise Violation(f"at {step.at_s:.3f} s: {what}")


@dataclass(slots=True)
class _Rest:
    """What is known of a device that holds back what it has not sent."""

    #: What was held back before the last update that it sealed, and after it, if that was sent; its term and lease.
    before: np.ndarray
    after: np.ndarray
    sealed: tuple[int, int] = (0, 0)
    #: That update was not sent.
    is_back: bool = True
    #: The update in hand as it was trained, and with what was held back before.
    trained: tuple[int, np.ndarray] | None = None
    total: np.ndarray | None = None


def sent_values(request: SealRequest, entropy: bytes) -> np.ndarray:
    """What the words of an update say at their places, as the sum has it: rounded, and cut at the bound."""
    assert request.places is not None
    point = request.noise or FixedPoint(request.label.bound, request.group.size, request.word_bits)
    words = point.encode(request.update[request.places], factor=1.0, chance=rounding_of(entropy))
    return point.decode(words, times=1.0)


class RestOracle:
    """Sums of some places alone: their places, and what devices hold back."""

    def __init__(self, clips: Mapping[str, float] | None = None) -> None:
        #: Job -> the length to which its devices clip what they seal, where they do.
        self._clips = clips or {}
        #: (job, term, group) -> its places, as they were told first.
        self._told: dict[tuple[str, int, int], bytes] = {}
        self._rests: dict[tuple[str, str], _Rest | None] = {}

    def step(self, step: Step) -> None:
        if step.role == "leader":
            for action in step.actions:
                if isinstance(action, Send) and isinstance(action.message, Bind) and action.message.tensors:
                    bind = action.message
                    told = bind.tensors["places"].tobytes()
                    first = self._told.setdefault((step.job, bind.term, bind.group), told)
                    self._hold(first == told, step, f"{action.to} was told other places of group {bind.group}")
            return
        if step.role != "worker":
            return
        match step.event:
            case Started():
                self._rests[step.node, step.job] = None
            case Trained() as trained:
                self._trained(step, trained)
            case UpdateSealed(kept=kept) if kept is not None and kept.places is not None:
                rest = self._rests[step.node, step.job]
                if rest is not None and rest.total is not None and any(isinstance(each, Send) for each in step.actions):
                    # Gone from there, also what the bound cut off: else it would be in a second sum.
                    rest.after = rest.total.copy()
                    rest.after[kept.places] = 0.0
                    rest.is_back = False
            case _:
                pass
        for action in step.actions:
            if isinstance(action, Seal) and action.request.places is not None:
                self._sealed(step, action)

    def _trained(self, step: Step, trained: Trained) -> None:
        delta, key = trained.tensors["delta"].astype(np.float64), (step.node, step.job)
        rest = self._rests.get(key)
        if rest is None:
            rest = self._rests[key] = _Rest(before=np.zeros(delta.size), after=np.zeros(delta.size))
        rest.trained = (trained.lease, delta)

    def _sealed(self, step: Step, action: Seal) -> None:
        request, label, node = action.request, action.request.label, step.node
        told = self._told[step.job, label.term, label.group]
        assert request.places is not None
        places = decode_places(
            {"places": np.frombuffer(told, np.uint8)}, count=request.places.size, size=request.update.size
        )
        self._hold(np.array_equal(places, request.places), step, f"{node} sealed other places than it was told")
        rest = self._rests.get((node, step.job))
        assert rest is not None
        assert rest.trained is not None
        assert rest.trained[0] == action.lease
        total = request.update.astype(np.float64)
        held = total - rest.trained[1]
        if rest.sealed == (label.term, action.lease):
            known = [rest.before]
        elif rest.sealed[0] != label.term:
            # A new leader may go on from before several updates: then nothing of them is held back.
            known = [*([rest.before] if rest.is_back else []), rest.after, np.zeros(held.size)]
        else:
            known = [rest.before, rest.after] if rest.is_back else [rest.after]
        room = 1e-5 * (1 + float(np.abs(total).max()))
        delta = rest.trained[1]
        # Clipped last of all, so that whatever was held back, what leaves a device is bounded.
        found = next(
            (each for each in known if np.allclose(total, self._clipped(step.job, delta + each), rtol=1e-4, atol=room)),
            None,
        )
        self._hold(
            found is not None,
            step,
            f"{node} sealed {total} for lease {action.lease}, trained {delta} and held back {rest.after}, before that"
            f" {rest.before}",
        )
        rest.before = held if step.job not in self._clips or found is None else found
        rest.after, rest.total, rest.is_back = rest.before, total, True
        rest.sealed = (label.term, action.lease)

    def _clipped(self, job: str, update: np.ndarray) -> np.ndarray:
        length = float(np.linalg.norm(update))
        return update * min(1.0, self._clips[job] / length) if job in self._clips and length else update

    _hold = staticmethod(SealOracle._hold)
