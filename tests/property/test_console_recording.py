"""A recording: what is replayed is what was there, however small its bounds; lanes are spans without gaps."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.console.devices import ACTIVITIES
from shoal.console.lanes import CHANGES_MAX, Lanes
from shoal.console.recording import KEYFRAME_S, Recording
from shoal.console.series import POINTS_MAX, Series

_STATES = st.dictionaries(
    st.sampled_from(["nodes", "jobs", "cluster"]),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 3) | st.text("xy", max_size=3) | st.just([1]), max_size=3),
    max_size=3,
)
_STEPS_S = st.floats(0.01, 2 * KEYFRAME_S)
_STORIES = st.lists(st.tuples(_STEPS_S, _STATES), min_size=1, max_size=25)


def _played(story: list[tuple[float, Any]], recording: Recording) -> list[tuple[float, Any]]:
    at_s, told = 1_790_000_000.0, []
    for step_s, state in story:
        at_s += step_s
        recording.add(state, at_s)
        told.append((at_s, state))
    return told


@settings(deadline=None)
@given(_STORIES)
def test_every_state_is_replayed_as_it_was(story: list[tuple[float, Any]]) -> None:
    recording = Recording(span_s=1e9)
    for at_s, state in _played(story, recording):
        segment = recording.segment_at(at_s)
        assert segment is not None
        assert segment.state_at(at_s) == state


@settings(deadline=None)
@given(_STORIES, st.floats(0.001, 1.0))
def test_between_two_states_the_earlier_one_holds(story: list[tuple[float, Any]], share: float) -> None:
    recording = Recording(span_s=1e9)
    told = _played(story, recording)
    for (at_s, state), (next_s, _) in itertools.pairwise(told):
        moment_s = at_s + (next_s - at_s) * share * 0.999
        segment = recording.segment_at(moment_s)
        assert segment is not None
        assert segment.state_at(moment_s) == state


@settings(deadline=None)
@given(_STORIES, st.floats(1.0, 300.0), st.integers(1, 2000))
def test_a_recording_keeps_its_bounds_and_the_present(
    story: list[tuple[float, Any]], span_s: float, bytes_max: int
) -> None:
    recording = Recording(span_s=span_s, bytes_max=bytes_max)
    told = _played(story, recording)
    last_s, last = told[-1]
    segment = recording.segment_at(last_s)
    assert segment is not None
    assert segment.state_at(last_s) == last
    assert recording.from_s is not None
    # Nothing but the segment that holds the present may exceed the bounds, by a keyframe's span at most.
    assert recording.from_s >= last_s - span_s - 2 * KEYFRAME_S * 2 or recording.from_s == segment.from_s
    assert recording.size_bytes <= bytes_max or recording.from_s == segment.from_s
    assert recording.segment_at(recording.from_s - 1.0) is None


def test_a_long_day_takes_a_bounded_memory() -> None:
    recording = Recording(bytes_max=200_000)
    state: dict[str, Any] = {"nodes": {f"device-{number}": {"batches": 0} for number in range(50)}}
    for second in range(3 * 3600):
        row = {"batches": second, "why": f"waits for batch {second * 7919 % 104729}"}
        state = {"nodes": {**state["nodes"], f"device-{second % 50}": row}}
        recording.add(state, float(second))
        assert recording.size_bytes <= 200_000
    assert recording.to_s == 3 * 3600 - 1
    assert recording.from_s is not None
    assert recording.from_s >= 2 * 3600 - 2 * KEYFRAME_S


_DOING = st.dictionaries(st.sampled_from(["one", "two", "three"]), st.sampled_from(ACTIVITIES), min_size=1)


@given(st.lists(st.tuples(st.floats(0.5, 30), _DOING), min_size=1, max_size=30), st.floats(5, 400))
def test_lanes_have_no_gaps_and_tell_what_was_told(story: list[tuple[float, dict[str, str]]], window_s: float) -> None:
    lanes, at_s, told = Lanes(span_s=1e9), 1000.0, []
    for step_s, doing in story:
        at_s += step_s
        lanes.add(doing, at_s)
        told.append((at_s, doing))
    spans = lanes.spans(at_s - window_s, at_s)
    for node, row in spans.items():
        for before, after in itertools.pairwise(row):
            assert before[1] == after[0], "a span begins where the one before it ends"
            assert before[2] != after[2]
        for begin_s, end_s, _ in row:
            assert at_s - window_s - 0.01 <= begin_s < end_s <= at_s + 0.01  # type: ignore[operator]
        for moment_s, doing in told[:-1]:
            if node in doing and moment_s > at_s - window_s:
                at_moment = [does for begin_s, end_s, does in row if begin_s <= moment_s + 0.02 < end_s]  # type: ignore[operator]
                assert at_moment == [doing[node]]


def test_lanes_forget_what_is_older_than_their_span() -> None:
    lanes = Lanes(span_s=100.0)
    for second in range(1000):
        lanes.add({"one": ("train", "wait")[second % 2]}, float(second))
    assert lanes.changes <= 102
    assert lanes.spans(0, 2000)["one"][0][0] == 899, "the change at the horizon says what it did then"
    lanes.add({}, 1000.0)
    lanes.add({}, 1200.0)
    assert lanes.changes == 0, "a device that left an hour ago takes no memory"


def test_lanes_of_many_devices_keep_their_bound() -> None:
    lanes = Lanes(changes_max=5000)
    names = [f"device-{number}" for number in range(100)]
    for second in range(300):
        lanes.add(dict.fromkeys(names, ("train", "wait")[second % 2]), float(second))
        assert lanes.changes <= 5000 + len(names)
    assert set(lanes.spans(0, 300)) == set(names)
    one = Lanes()
    for second in range(2 * CHANGES_MAX):
        one.add({"one": ("train", "wait")[second % 2]}, second / 10)
    assert one.changes == CHANGES_MAX


def test_a_series_is_thinned_and_bounded() -> None:
    series = Series()
    for second in range(3 * 3600):
        series.add("digits", {"version": second, "examples_per_s": 5.0, "bytes_up": 100 * second}, float(second))
    whole = series.rows("digits", 0, 1e9)
    assert len(whole["at_s"]) <= POINTS_MAX
    assert whole["at_s"][0] >= 2 * 3600 - 600  # type: ignore[operator]
    assert whole["version"] == whole["at_s"]
    assert whole["bytes_per_s"][0] is None
    assert set(whole["bytes_per_s"][1:]) == {100.0}
    assert set(whole["train_loss"]) == {None}
    assert series.rows("digits", 10_000, 10_004)["at_s"] == [10_000, 10_001, 10_002, 10_003, 10_004]
    assert series.rows("other", 0, 1e9)["at_s"] == []
    for number in range(100):
        series.add(f"job-{number}", {"version": 1}, 20_000.0 + number)
    assert series.rows("digits", 0, 1e9)["at_s"] == [], "the job that is silent longest goes first"
