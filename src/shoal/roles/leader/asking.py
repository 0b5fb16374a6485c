"""Asks the algorithm of a researcher where a leader would decide by the plan. A part of the leader.

The driver calls the algorithm, and hands the leader no other event before the answer. The state of the algorithm
changes only together with the version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from shoal.learning.algorithm import AlgorithmState, UpdateFacts, WaitingDevice
from shoal.learning.algorithm_call import (
    AlgorithmAnswer,
    ChooseQuestion,
    FinishQuestion,
    MergeQuestion,
    Question,
    problem_of,
)
from shoal.learning.layout import Layout
from shoal.roles.actions import AskAlgorithm
from shoal.roles.leader.weighing import Room, UpdateRows, WeighedDown
from shoal.roles.machine import Machine
from shoal.wire.messages import Update

#: What follows from an answer.
Then: TypeAlias = Callable[[Question, AlgorithmAnswer], None]


class AskedAlgorithm:
    def __init__(self, machine: Machine, hooks: frozenset[str], layout: Layout, *, room: Room) -> None:
        self._machine = machine
        self._hooks = hooks
        self._layout = layout
        #: Replaced and never written to.
        self.state: AlgorithmState = {}
        #: The updates of the coming version, if the algorithm merges them.
        self.rows = RowsForMerge(layout.size, room=room) if "merge" in hooks else None
        #: Device -> its examples, its loss and the version it trained from, when it trained last.
        self._facts: dict[str, tuple[UpdateFacts, int]] = {}
        #: The number of the last question; and the question, until it is answered, with what follows.
        self._number = 0
        self._asked: tuple[Question, Then] | None = None
        #: A version and the devices that train for it, from the answer until they have their leases.
        self._chosen: tuple[int, tuple[str, ...]] | None = None
        self.has_failed = False

    @property
    def chooses(self) -> bool:
        return "choose" in self._hooks

    @property
    def makes_versions(self) -> bool:
        return bool(self._hooks & {"merge", "finish"})

    @property
    def is_waiting(self) -> bool:
        """A question has no answer yet: nothing else may be decided."""
        return self._asked is not None

    def note(self, node: str, update: Update, *, version: int) -> None:
        """Note what came with an update that is merged. ``version`` is the version that its device started from."""
        loss = update.loss_sum / update.examples if update.examples else 0.0
        self._facts[node] = UpdateFacts(node=node, examples=update.examples, loss=loss), version

    def question(self, mean: Callable[[], np.ndarray]) -> Question:
        """Return what is asked for the next version."""
        if self.rows is None:
            return FinishQuestion(mean=mean())
        facts = tuple(self._facts[node][0] for node in self.rows.nodes)
        return MergeQuestion(updates=self.rows.updates, facts=facts)

    def ask(self, question: Question, then: Then) -> None:
        assert self._asked is None, "one question at a time"
        self._number, self._asked = self._number + 1, (question, then)
        asked = AskAlgorithm(number=self._number, question=question, state=self.state, layout=self._layout)
        self._machine.act(asked)

    def awaits(self, number: int) -> bool:
        """Whether the question of this number has no answer yet."""
        return self._asked is not None and number == self._number

    def on_answered(self, answer: AlgorithmAnswer) -> str | None:
        """Go on with the answer that is awaited. Return what is wrong with it, or None if it can be used."""
        assert self._asked is not None, "nothing was asked"
        (question, then), self._asked = self._asked, None
        if (problem := problem_of(answer, question, self._layout)) is not None:
            return f"the algorithm's {question.hook} returned {problem}"
        then(question, answer)
        return None

    def on_failed(self) -> None:
        """No answer will come, to this question or another."""
        self._asked, self.has_failed = None, True

    def chosen(self, candidates: Sequence[WaitingDevice], count: int, *, seed: int, version: int) -> list[str]:
        """Return the devices that train next, or none until the algorithm has answered."""
        if self._chosen is not None and self._chosen[0] == version:
            names, self._chosen = self._chosen[1], None
            return list(names)
        if self.is_waiting or self.has_failed or not candidates:
            return []
        told = []
        for each in candidates:
            known = self._facts.get(each.node)
            loss, trained_from = (None, None) if known is None else (known[0].loss, known[1])
            told.append(replace(each, loss=loss, trained_from=trained_from))
        question = ChooseQuestion(candidates=tuple(told), count=min(count, len(told)), seed=seed, version=version)
        self.ask(question, self._on_chosen)
        return []

    def _on_chosen(self, question: Question, answer: AlgorithmAnswer) -> None:
        assert isinstance(question, ChooseQuestion)
        self._chosen = question.version, answer.chosen

    def restore(self, state: AlgorithmState) -> None:
        self.state = dict(state)


class RowsForMerge(UpdateRows):
    """The updates of a version, one per device, until the algorithm merges them. See ``weighing.Weighing``."""

    def mean(self) -> tuple[np.ndarray, list[WeighedDown]]:
        raise AssertionError("the algorithm was not asked for this version")
