"""Models that aggregators give out: which worker was given which version by them, and what they are sent for it. A part
of the leader."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shoal.roles.leader.gathering.formation import Formation
from shoal.roles.leader.training_state import TrainingState
from shoal.wire.coded import encode_exact
from shoal.wire.limits import MESSAGE_TENSORS_MAX
from shoal.wire.messages import JobSpec, RelayModel


class ModelRelay:
    def __init__(self, spec: JobSpec, term: int, training: TrainingState) -> None:
        self._spec, self._term, self._training = spec, term, training
        #: Worker -> the formation and version whose values its aggregators gave out to it.
        self._given: dict[str, tuple[int, int]] = {}

    def values_by(self, node: str) -> int:
        """Return the formation whose aggregators gave this worker the present version, or 0 if none did."""
        formation, version = self._given.get(node, (0, -1))
        return formation if version == self._training.version else 0

    def on_given(self, members: Iterable[str], formation: Formation, version: int) -> None:
        """Aggregators of a formation give this version to these members."""
        for member in members:
            self._given[member] = (formation.number, version)

    def on_missing(self, node: str) -> None:
        """A worker did not get the values that its aggregators gave out, or is gone."""
        self._given.pop(node, None)

    def clear(self) -> None:
        """Another formation holds, or none."""
        self._given.clear()

    def pass_on(self, now: Formation | None, node: str, holds: Callable[[str], int]) -> tuple[str, RelayModel] | None:
        """In a tree, have this worker's aggregator give the present version to its members, which hold these."""
        if now is None or now.kind != "tree" or not now.reaches(node):
            return None
        share, version = now.shares_of(node)[0], self._training.version
        if share.passed == version:
            return None
        share.passed = version
        members = [member for member in share.members if member in now.routed]
        self.on_given(members, now, version)
        held = {holds(member) for member in members}
        base, tensors = self._training.brings(held.pop() if len(held) == 1 else -1)
        if self._training.centre is not None:
            if len(tensors) >= MESSAGE_TENSORS_MAX:
                # There is no room for one tensor more.
                base, tensors = self._training.brings(-1)
            tensors = {**tensors, **encode_exact(self._training.centre, name="centre")}
        message = RelayModel(
            job=self._spec.job, term=self._term, formation=now.number, version=version, base=base, tensors=tensors
        )
        return share.node, message

    def pass_parts(self, now: Formation | None, node: str) -> list[tuple[str, RelayModel]]:
        """In a shard whose steps the leader takes, have each aggregator give its part of the present version to all
        members. In other shards they have made it themselves."""
        version = self._training.version
        is_led = self._spec.plan.is_stepped_by_leader
        if now is None or now.kind != "shard" or not is_led or not now.reaches(node):
            return []
        passed = []
        for share in [share for share in now.shares if share.passed != version]:
            share.passed = version
            tensors = {"model": self._training.model[share.start : share.stop]}
            relay = RelayModel(
                job=self._spec.job, term=self._term, formation=now.number, version=version, tensors=tensors
            )
            passed.append((share.node, relay))
        if passed:
            self.on_given(now.routed, now, version)
        return passed
