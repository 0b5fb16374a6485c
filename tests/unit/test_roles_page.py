"""docs/roles.md tells of the states that the code has, and of no others."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from shoal.roles import actions, events
from shoal.roles.leader.gathering.helper_opener import MASKS_S
from shoal.roles.leader.gathering.sealed_group import ANSWER_S
from shoal.roles.manager.appointment import APPOINTED_S, PARTING_S
from shoal.roles.manager.failover import MISSED_S
from shoal.roles.manager.reconciliation import ADOPTED_S, RETURN_S
from shoal.roles.node.failure_detector import OVERSLEPT_S, Patience
from shoal.states import SEAL_MOVES, SealPhase
from shoal.wire.messages import MESSAGES

PAGE = (Path(__file__).parents[2] / "docs" / "roles.md").read_text()
SECTIONS: dict[str, str] = dict(re.findall(r"^## [^\n]*: `(shoal[\w.]+)`\n(.*?)(?=^## |\Z)", PAGE, flags=re.M | re.S))


#: States that nothing follows.
ENDS = {"shoal.states.SealPhase": {"opened", "void"}}

#: The cells that name durations, and the seconds that the code has for each.
DURATIONS: dict[str, tuple[float, ...]] = {
    "`Keep`, `Record`, `Assign`; a timer of N": (APPOINTED_S,),
    "`HandOver`; a timer of N": (ADOPTED_S,),
    "N pass, or the node cannot be dialled": (APPOINTED_S,),
    "`Record`, `HandOver`; a timer of N": (PARTING_S,),
    "a timer of N": (MISSED_S,),
    "N pass": (MISSED_S,),
    "N pass without its last checkpoint": (ADOPTED_S,),
    "workers respond without their leader for N": (RETURN_S,),
    "N of silence, or its session closes": (Patience().suspect_after_s,),
    "N of silence in all, or N after its session closed": (Patience().lost_after_s, Patience().reconnect_s),
    "N after it should have come, or it is revoked": (OVERSLEPT_S,),
    "too few agreed within N": (ANSWER_S,),
    "too few answered within N, or most trainings diverged, or the mean is longer than honest ones can be": (ANSWER_S,),
    "the helper is lost, began again, refused, or did not answer for N": (MASKS_S,),
}
#: A duration in a cell.
_DURATION = re.compile(r"(\d+(?:\.\d+)?) (s|minutes)\b")


def rows_of(body: str) -> list[list[str]]:
    lines = [line for line in body.splitlines() if line.startswith("| ") and not line.startswith("| state |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def states_of(name: str) -> set[str]:
    module, _, enum = name.rpartition(".")
    return {str(state) for state in getattr(importlib.import_module(module), enum)}


def test_every_machine_that_has_states_has_a_table() -> None:
    told = {name.rpartition(".")[2] for name in SECTIONS}
    assert told == {"JobState", "LeadershipStage", "Liveness", "LeaderPhase", "SealPhase", "WorkerState", "WorkerPhase"}


@pytest.mark.parametrize("name", SECTIONS)
def test_a_table_has_every_state_and_no_other(name: str) -> None:
    states, rows = states_of(name), rows_of(SECTIONS[name])
    ends = ENDS.get(name, set())
    assert {state for row in rows for state in row[0].split(", ")} == states - ends
    for state, event, after, _ in rows:
        reached = set(re.findall(r"[a-z]+", after)) & states
        assert reached or after == "same", f"{state} on {event} leads nowhere: {after}"
    first = next(iter(rows))[0].split(", ")[0]
    entered = {word for row in rows for word in re.findall(r"[a-z]+", row[2])} & states
    assert entered | {first} == states, "a state that nothing leads to"


def test_a_sealed_group_moves_as_its_table_says() -> None:
    states = {str(phase) for phase in SealPhase}
    told: dict[str, set[str]] = {state: set() for state in states}
    for before, _, after, _ in rows_of(SECTIONS["shoal.states.SealPhase"]):
        for state in before.split(", "):
            told[state] |= set(re.findall(r"[a-z]+", after)) & states
    assert told == {str(phase): {str(each) for each in SEAL_MOVES[phase]} for phase in SealPhase}


def test_whatever_is_named_exists() -> None:
    known = {*MESSAGES, *vars(events), *vars(actions)}
    named = set(re.findall(r"`([A-Z]\w+)`", PAGE))
    assert named <= known, named - known


def test_the_durations_of_the_tables_are_those_of_the_code() -> None:
    found: dict[str, tuple[float, ...]] = {}
    for body in SECTIONS.values():
        for cell in (cell for row in rows_of(body) for cell in row):
            if told := _DURATION.findall(cell):
                seconds = tuple(float(number) * (60 if unit == "minutes" else 1) for number, unit in told)
                found[_DURATION.sub("N", cell)] = seconds
    assert found == DURATIONS
