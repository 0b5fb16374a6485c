"""Asks the algorithm of a researcher where a leader would decide by the plan. A part of the leader.

The algorithm gets copies, and what it returns is checked before anything changes by it. Its state changes only together
with the version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.errors import Misuse
from shoal.learning.algorithm import Algorithm, AlgorithmState, UpdateFacts, WaitingDevice, hooks_of
from shoal.learning.layout import Layout
from shoal.roles.leader.weighing import Room, UpdateRows, WeighedDown
from shoal.wire.messages import Update

#: A model's worth of values times this is the most that an algorithm may keep.
STATE_MODELS = 4


class AskedAlgorithm:
    def __init__(self, algorithm: Algorithm, layout: Layout, *, room: Room) -> None:
        self._algorithm = algorithm
        self._layout = layout
        self._hooks = hooks_of(algorithm)
        #: Replaced and never written to.
        self.state: AlgorithmState = {}
        #: The updates of the coming version, if the algorithm merges them.
        self.rows = RowsForMerge(self, layout.size, room) if "merge" in self._hooks else None
        #: Device -> its examples, its loss and the version it trained from, when it trained last.
        self._facts: dict[str, tuple[UpdateFacts, int]] = {}

    @property
    def chooses(self) -> bool:
        return "choose" in self._hooks

    def note(self, node: str, update: Update, *, version: int) -> None:
        """Note what came with an update that is merged. ``version`` is the version that its device started from."""
        loss = update.loss_sum / update.examples if update.examples else 0.0
        self._facts[node] = UpdateFacts(node=node, examples=update.examples, loss=loss), version

    def merged(self, updates: np.ndarray, nodes: Sequence[str]) -> np.ndarray:
        facts = [self._facts[node][0] for node in nodes]
        change, state = self._ask("merge", self._algorithm.merge, updates.copy(), facts)
        change = self._vector(change, "merge", "a change")
        if change.shape != (self._layout.size,):
            raise self._wrong("merge", f"a change of shape {change.shape}: the model has {self._layout.size:,} values")
        self.state = state
        return change

    def finished(self, mean: np.ndarray) -> np.ndarray:
        """Return the change that is made of the mean of a version."""
        if "finish" not in self._hooks:
            return mean
        views = self._layout.views(mean.copy())
        changes, state = self._ask("finish", self._algorithm.finish, views)
        if not isinstance(changes, Mapping) or not changes.keys() <= views.keys():
            raise self._wrong("finish", f"changes of other tensors than {', '.join(list(views)[:8])}")
        change = np.zeros(self._layout.size, dtype=np.float32)
        for name, view in self._layout.views(change).items():
            if name in changes:
                array = self._vector(changes[name], "finish", f"a change of {name}")
                if array.size != view.size:
                    raise self._wrong("finish", f"{array.size} values for {name}, which has {view.size}")
                view[...] = array.reshape(view.shape)
        self.state = state
        return change

    def chosen(self, candidates: Sequence[WaitingDevice], count: int, *, seed: int, version: int) -> list[str]:
        """Return the devices that train next."""
        told = []
        for each in candidates:
            known = self._facts.get(each.node)
            loss, trained_from = (None, None) if known is None else (known[0].loss, known[1])
            told.append(replace(each, loss=loss, trained_from=trained_from))
        count = min(count, len(told))
        rng = np.random.default_rng((seed, version))
        names = list(self._called("choose", self._algorithm.choose, told, count, rng))
        known_names = {each.node for each in candidates}
        if len(set(names)) < len(names) or not known_names.issuperset(names):
            raise self._wrong("choose", "a device twice, or one that was not a candidate")
        if len(names) != count:
            raise self._wrong("choose", f"{len(names)} devices instead of {count}")
        return names

    def restore(self, state: AlgorithmState) -> None:
        self.state = dict(state)

    def _ask(self, hook: str, method: Callable[..., Any], *arguments: Any) -> tuple[Any, AlgorithmState]:
        """Call a method that returns a new state beside its result."""
        state = {name: array.copy() for name, array in self.state.items()}
        answer = self._called(hook, method, *arguments, state)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Mapping):
            raise self._wrong(hook, "no pair of a change and a state")
        kept: dict[str, np.ndarray] = {}
        for name, value in answer[1].items():
            if not isinstance(name, str) or not name:
                raise self._wrong(hook, f"a state with the name {name!r}: names are texts")
            kept[name] = self._vector(value, hook, f"a state {name!r}")
            kept[name].flags.writeable = False
        if sum(array.size for array in kept.values()) > STATE_MODELS * max(self._layout.size, 1024):
            raise self._wrong(hook, f"a state larger than {STATE_MODELS} models")
        return answer[0], kept

    def _called(self, hook: str, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception as error:
            raise Misuse(f"{self._name(hook)} raised {type(error).__name__}: {error}") from error

    def _vector(self, value: Any, hook: str, what: str) -> np.ndarray:
        """Return a copy as float32."""
        try:
            array = np.array(value, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise self._wrong(hook, f"{what} that is not an array of numbers") from error
        if not np.isfinite(array).all():
            raise self._wrong(hook, f"{what} with values that are not finite")
        return array

    def _wrong(self, hook: str, what: str) -> Misuse:
        return Misuse(f"{self._name(hook)} returned {what}")

    def _name(self, hook: str) -> str:
        return f"{type(self._algorithm).__name__}.{hook}"


class RowsForMerge(UpdateRows):
    """The updates of a version, one per device, until the algorithm merges them. See ``weighing.Weighing``."""

    def __init__(self, asked: AskedAlgorithm, size: int, room: Room) -> None:
        super().__init__(size, room=room)
        self._asked = asked

    def mean(self) -> tuple[np.ndarray, list[WeighedDown]]:
        return self._asked.merged(self.updates, self.nodes), []
