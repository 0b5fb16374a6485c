"""Deliberate bugs of sealing devices, one for each check that stands against a leader that lies. Each leaves a check
out; none knows how it will be caught.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from shoal.roles.actions import Train
from shoal.roles.events import Trained, UpdateSealed
from shoal.roles.leader.gathering import sealing as leader_sealing
from shoal.roles.leader.gathering.sealing import Sealing
from shoal.roles.worker import sealing as device_sealing
from shoal.roles.worker.sealing import DeviceSealing
from shoal.roles.worker.worker import Worker, _problem
from shoal.sealing import carry_out, pair
from shoal.sealing.device import SealedUpdate
from shoal.sealing.graph import GraphShape
from shoal.sealing.group import MaskGraph
from shoal.sim.driver.worker_driver import SimWorkerDriver
from shoal.trust import Sealed
from shoal.wire.messages import Open, Work

Patched = AbstractContextManager[object]
Mutant = Callable[[], Patched]


def _with_shape(change: Callable[[GraphShape], GraphShape]) -> Patched:
    """Every graph has another shape than the plan's numbers give."""
    of = MaskGraph.of.__func__  # type: ignore[attr-defined]

    def changed(cls: type[MaskGraph], shape: GraphShape, nonces: tuple[bytes, ...], *, least: int) -> MaskGraph:
        made: MaskGraph = of(cls, change(shape), nonces, least=least)
        return made

    return patch.object(MaskGraph, "of", classmethod(changed))


# The set ----------------------------------------------------------------------------------------------------


def agreement_not_counted() -> Patched:
    """A device opens, however few members agreed to the same set."""
    return _with_shape(lambda shape: replace(shape, agreed=1) if shape.neighbours else shape)


def macs_not_compared() -> Patched:
    """A device takes any MAC for that of a member that agreed."""
    return patch.object(pair, "is_mac", lambda *_: True)


def edges_given_with_the_agreement() -> Patched:
    """The seeds of edges to members outside the set leave before anybody compared sets."""
    agree = SealedUpdate.agree

    def gives(self: SealedUpdate, present: frozenset[int]) -> bytes:
        seat, macs = self._seat, agree(self, present)
        absent = seat.group.absent_near(seat.place, present)
        return macs + b"".join(pair.edge_seed(seat.keys[other], seat.label) for other in absent)

    return patch.object(SealedUpdate, "agree", gives)


@contextmanager
def only_neighbours_agree() -> Iterator[None]:
    """Devices compare sets with their neighbours on the ring, and with nobody else."""

    def fewer(shape: GraphShape) -> GraphShape:
        return shape if shape.is_complete or not shape.neighbours else replace(shape, agreed=shape.neighbours // 2 + 1)

    def near(self: MaskGraph, place: int, present: frozenset[int]) -> tuple[int, ...]:
        return self.present_near(place, present)

    with _with_shape(fewer), patch.object(MaskGraph, "others", near):
        yield


def two_sets_under_one_label() -> Patched:
    """A device agrees to whatever set it is told of last."""
    agree = SealedUpdate.agree

    def forgetful(self: SealedUpdate, present: frozenset[int]) -> bytes:
        self._present = None
        return agree(self, present)

    return patch.object(SealedUpdate, "agree", forgetful)


def half_of_the_members_are_enough() -> Patched:
    """Two sets of members may each be large enough, and have only liars in common."""
    return _with_shape(lambda shape: replace(shape, agreed=shape.agreed - 1) if shape.neighbours else shape)


def too_few_neighbours() -> Patched:
    """On a ring, colluding and missing members can surround a device."""

    def fewer(shape: GraphShape) -> GraphShape:
        if shape.is_complete or not shape.neighbours:
            return shape
        return replace(shape, neighbours=shape.neighbours - 2, threshold=max(1, shape.threshold - 2))

    return _with_shape(fewer)


def liars_hold_enough_shares() -> Patched:
    """As many shares as there may be liars open a mask."""
    return _with_shape(lambda shape: replace(shape, threshold=max(1, shape.liars)) if shape.neighbours else shape)


def any_set_is_large_enough() -> Patched:
    return patch.object(GraphShape, "least", lambda self, said: 1)


def opened_again_for_members_in_the_sum() -> Patched:
    """Of a neighbour that vanished, shares of all edges are given, and not only of those that do not cancel."""

    def all_of_them(self: SealedUpdate, vanished: int, envelope: bytes, present: frozenset[int]) -> bytes:
        return self._opened(vanished, b"edges", envelope)

    return patch.object(SealedUpdate, "_edges_of", all_of_them)


def liars_counted_by_the_group() -> Patched:
    """The share of liars is taken of a group, in which a leader may put all of them, although members are signed."""
    return patch.object(Sealed, "liars_of", lambda self, group: math.ceil(round(group * self.colluding, 9)))


# What is trained --------------------------------------------------------------------------------------------


def _refusing_less(change: Callable[[DeviceSealing, Work], Work]) -> Patched:
    refusal = DeviceSealing.refusal
    return patch.object(DeviceSealing, "refusal", lambda self, work: refusal(self, change(self, work)))


def rate_of_the_lease() -> Patched:
    """A device trains with whatever learning rate its leader names."""
    begin = Worker._begin

    def as_told(self: Worker, held: Any, **given: Any) -> None:
        before = len(self._actions)
        begin(self, held, **given)
        for at, action in list(enumerate(self._actions))[before:]:
            if isinstance(action, Train):
                self._actions[at] = replace(action, rate=held.work.rate)

    stack = ExitStack()
    stack.enter_context(patch.object(Worker, "_begin", as_told))
    stack.enter_context(_refusing_less(lambda self, work: replace(work, rate=self._spec.plan.rate_at(work.version))))
    return stack


def any_lease_size() -> Patched:
    """A device trains as many examples as its leader says."""
    return _refusing_less(lambda self, work: replace(work, examples=self._spec.plan.sealed_examples[0]))


@contextmanager
def _bases(**same: int) -> Iterator[None]:
    trained_on = carry_out.trained_on

    def without(model: bytes, *, version: int, epoch: int) -> bytes:
        return trained_on(model, **{"version": version, "epoch": epoch, **same})

    with patch.object(carry_out, "trained_on", without), patch.object(leader_sealing, "trained_on", without):
        yield


def version_not_in_the_label() -> Patched:
    """Devices may be told different versions of one model."""
    return _bases(version=0)


def epoch_not_in_the_label() -> Patched:
    """Devices may be told different epochs."""
    return _bases(epoch=0)


def weights_not_compared() -> Patched:
    """A device seals although its update counts next to nothing beside another."""
    return patch.object(device_sealing, "EXAMPLES_APART", 10**9)


def turn_of_the_leader() -> Patched:
    """The leader names the turn by which a device chooses its examples."""
    return patch.object(DeviceSealing, "begin", lambda self, work: work.batches)


def lease_trained_again() -> Patched:
    """A lease that is lent again is trained again, to the same update."""
    return patch.object(DeviceSealing, "was_begun", lambda self, work: False)


def any_first_model() -> Patched:
    """Version 0 may be another model than the one that the operator signed."""
    seal = SimWorkerDriver._seal

    def takes_any(self: SimWorkerDriver, keys: Any, action: Any) -> UpdateSealed:
        job = self._job
        if self._model is not None:
            self._job = replace(job, model=self._model)
        try:
            return seal(self, keys, action)
        finally:
            self._job = job

    return patch.object(SimWorkerDriver, "_seal", takes_any)


# What is told -----------------------------------------------------------------------------------------------


def loss_told() -> Patched:
    """What a training tells leaves with the update."""
    note = DeviceSealing.note

    def tells(self: DeviceSealing, event: Trained, *, has_diverged: bool) -> Trained:
        return replace(note(self, event, has_diverged=has_diverged), loss_sum=event.loss_sum)

    return patch.object(DeviceSealing, "note", tells)


def divergence_told() -> Patched:
    """A device says that its training diverged."""
    on_result = Worker._on_result

    def tells(self: Worker, event: Any) -> None:
        problem = _problem(event)
        if problem is not None and self._held is not None and self._held.work.lease == event.lease:
            self._on_diverged(self._held, problem)
        else:
            on_result(self, event)

    return patch.object(Worker, "_on_result", tells)


# What is sealed ---------------------------------------------------------------------------------------------


def update_sealed_twice() -> Patched:
    """An update whose words left is sealed for the next group too."""
    on_sealed = DeviceSealing.on_sealed

    def unspent(self: DeviceSealing, held: Any, event: Any) -> None:
        on_sealed(self, held, event)
        self._spent = (0, 0)

    return patch.object(DeviceSealing, "on_sealed", unspent)


@contextmanager
def update_spent_when_it_is_opened() -> Iterator[None]:
    """A device that is not asked to open a sum seals its update again, although others may have opened it."""
    on_open = DeviceSealing.on_open

    def spends(self: DeviceSealing, message: Open) -> None:
        on_open(self, message)
        if self._kept is not None:
            self._spent = (message.term, self._kept[1])

    with update_sealed_twice(), patch.object(DeviceSealing, "on_open", spends):
        yield


def figures_of_those_left_out() -> Patched:
    """The figures of a member whose words were lost are in the sum."""
    leave_out = Sealing._leave_out

    def keeps(self: Sealing, group: Any, place: int, lease: Any) -> None:
        figures = group.figures[place]
        leave_out(self, group, place, lease)
        group.figures[place] = figures

    return patch.object(Sealing, "_leave_out", keeps)


OF_SEALING: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        agreement_not_counted,
        macs_not_compared,
        edges_given_with_the_agreement,
        only_neighbours_agree,
        two_sets_under_one_label,
        half_of_the_members_are_enough,
        too_few_neighbours,
        liars_hold_enough_shares,
        any_set_is_large_enough,
        opened_again_for_members_in_the_sum,
        liars_counted_by_the_group,
        rate_of_the_lease,
        any_lease_size,
        version_not_in_the_label,
        epoch_not_in_the_label,
        weights_not_compared,
        turn_of_the_leader,
        lease_trained_again,
        any_first_model,
        loss_told,
        divergence_told,
        update_sealed_twice,
        update_spent_when_it_is_opened,
        figures_of_those_left_out,
    )
}
