"""The fault language: every fault survives being written; no text breaks the reader; every schedule is valid."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dst.fault_draw import ENDS_WITHIN_S, draw
from shoal.errors import Misuse
from shoal.sim.fault_text import parse, write
from shoal.sim.faults import (
    KINDS,
    START,
    AllWorkers,
    AtEpoch,
    AtRound,
    AtSecond,
    Crash,
    CutFault,
    Delay,
    Duplicate,
    Fail,
    Fault,
    FullDisk,
    Hang,
    LeaveFault,
    Lose,
    NodeKind,
    PartitionFault,
    Restart,
    SaveFate,
    Skew,
    Slow,
    SlowLink,
    Stop,
    Who,
    WorkerShare,
    resolve,
)
from shoal.sim.rng import Rng

NUMBERS = st.integers(1, 9_999_999)
PLACES = st.sampled_from(NodeKind)
RANGES = st.tuples(NUMBERS, NUMBERS).map(lambda pair: AllWorkers(min(pair), max(pair)))
SOME = NUMBERS.map(lambda number: AllWorkers(number, number)) | RANGES
WORKERS = SOME | st.floats(0, 1, exclude_min=True).map(WorkerShare)


def whos(parts: st.SearchStrategy[NodeKind | AllWorkers | WorkerShare]) -> st.SearchStrategy[Who]:
    return st.lists(parts, min_size=1, max_size=4).map(lambda chosen: Who(tuple(chosen)))


WORKERS_ONLY, HOME_ONLY, ANYONE = whos(WORKERS), whos(PLACES), whos(PLACES | WORKERS)
FINITE = st.floats(0, allow_infinity=False)
WHEN = FINITE.map(AtSecond) | st.integers(1, 999_999_999).map(AtRound) | st.integers(1, 999_999_999).map(AtEpoch)
SPAN = st.floats(0, exclude_min=True)
AWAY = st.floats(0)
FACTOR = st.floats(1, allow_infinity=False)

FAULTS: st.SearchStrategy[Fault] = st.one_of(
    st.builds(Crash, who=ANYONE, at=WHEN, restart_s=AWAY),
    st.builds(Crash, who=HOME_ONLY, at=WHEN, restart_s=AWAY, disk=st.sampled_from(SaveFate)),
    st.builds(Restart, who=ANYONE, at=WHEN),
    st.builds(LeaveFault, who=WORKERS_ONLY, at=WHEN, back_s=AWAY),
    st.builds(Stop, who=ANYONE, at=WHEN, for_s=SPAN),
    st.builds(CutFault, who=WORKERS_ONLY, at=WHEN),
    st.builds(PartitionFault, who=whos(PLACES | SOME) | WORKERS_ONLY, at=WHEN, for_s=SPAN),
    st.builds(Slow, who=ANYONE, factor=FACTOR, at=WHEN, for_s=SPAN),
    st.builds(SlowLink, who=ANYONE, factor=FACTOR, at=WHEN, for_s=SPAN),
    st.builds(Delay, who=ANYONE, extra_s=FINITE, at=WHEN, for_s=SPAN),
    st.builds(Lose, who=ANYONE, share=st.floats(0, 1, exclude_max=True), at=WHEN, for_s=SPAN),
    st.builds(Duplicate, who=WORKERS_ONLY, share=st.floats(0, 1), at=WHEN, for_s=SPAN),
    st.builds(Skew, who=ANYONE, ahead_s=FINITE, at=WHEN),
    st.builds(Skew, who=ANYONE, ahead_s=st.floats(allow_nan=False, allow_infinity=False), at=st.just(START)),
    st.builds(Fail, who=WORKERS_ONLY, at=WHEN),
    st.builds(Hang, who=WORKERS_ONLY, at=WHEN),
    st.builds(FullDisk, who=HOME_ONLY, at=WHEN, for_s=SPAN),
)


@given(faults=st.lists(FAULTS, max_size=5))
def test_what_is_written_reads_back_the_same(faults: list[Fault]) -> None:
    assert parse(write(faults)) == tuple(faults)


def read_or_refuse(text: str) -> None:
    try:
        faults = parse(text, source="chaos.txt")
    except Misuse as refused:
        place = re.match(r"chaos\.txt:(\d+): ", str(refused))
        assert place is not None
        assert 1 <= int(place[1]) <= text.count("\n") + 1
    else:
        assert parse(write(faults)) == faults


@given(text=st.text())
def test_any_text_is_read_or_refused_with_its_line(text: str) -> None:
    read_or_refuse(text)


@given(
    words=st.lists(
        st.sampled_from(
            [*KINDS, *"(){},=#\n", "..", "w1", "home", "all", "at", "for_s", "disk", "round", "5%", "4x", "-3"]
        )
    )
)
def test_words_of_the_language_in_any_order_are_read_or_refused(words: list[str]) -> None:
    read_or_refuse(" ".join(words))


@given(fault=FAULTS, at=st.integers(0, 60), slip=st.sampled_from([*" (){},=.%x#w1-", ""]))
def test_a_slip_of_the_hand_is_read_or_refused(fault: Fault, at: int, slip: str) -> None:
    line = write([fault])
    read_or_refuse(line[:at] + slip + line[at + 1 :])


@given(who=ANYONE, workers=st.integers(1, 50), leader=st.sampled_from(["home", "w1"]))
def test_nodes_are_named_once_in_order_or_the_missing_one_is(who: Who, workers: int, leader: str) -> None:
    last = max((part.last for part in who.parts if isinstance(part, AllWorkers)), default=0)
    if last > workers:
        with pytest.raises(Misuse, match=r"there is no w\d+: this run has"):
            resolve(who, workers=workers, leader=leader)
        return
    names = resolve(who, workers=workers, leader=leader)
    everyone = ["home", *(f"w{number}" for number in range(1, workers + 1))]
    assert list(names) == [name for name in everyone if name in names]
    assert names


@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 40),
    until_s=st.floats(0, 500),
    count=st.integers(0, 25),
    kinds=st.none() | st.lists(st.sampled_from(list(KINDS)), min_size=1),
)
def test_a_schedule_replays_is_valid_and_ends(
    seed: int, workers: int, until_s: float, count: int, kinds: list[str] | None
) -> None:
    def once() -> tuple[Fault, ...]:
        return draw(Rng(seed).stream("faults"), workers=workers, until_s=until_s, count=count, kinds=kinds)

    faults = once()
    assert faults == once()
    assert len(faults) == count
    assert parse(write(faults)) == faults
    order = []
    for fault in faults:
        assert resolve(fault.who, workers=workers)
        lasts_s = max(getattr(fault, name, 0.0) for name in ("for_s", "restart_s", "back_s"))
        assert math.isfinite(lasts_s)
        assert lasts_s <= ENDS_WITHIN_S
        match fault.at:
            case AtSecond(s):
                assert s + lasts_s <= until_s + ENDS_WITHIN_S
                order.append((0, s))
            case AtRound(n):
                order.append((1, n))
            case AtEpoch(n):
                order.append((2, n))
    assert order == sorted(order)
