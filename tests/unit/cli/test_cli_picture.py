"""The picture of a simulation: a PNG of its size that shows something, whatever was simulated."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.cli.render.picture import PLANS_MAX, draw, lane_colours, result_text, span_text
from shoal.errors import Misuse
from shoal.sim.outcome import LANES_MAX, DeviceActivity, DeviceOutcome, DeviceTimeline, Note, Outcome, Point, Span
from shoal.states import JobState

TRAINING = (0x2B, 0x6C, 0xA3)
EVALUATING = (0xE8, 0xA3, 0x3D)
FAULT = (0xA3, 0x26, 0x1E)


def outcome_of(devices: int, *, seconds: float = 252.0, learns: bool = True) -> Outcome:
    third_s = seconds / 3
    spans = (
        Span(DeviceActivity.PREPARING, 0.0, third_s),
        Span(DeviceActivity.TRAINING, third_s, 2 * third_s),
        Span(DeviceActivity.WAITING, 2 * third_s, seconds),
    )
    names = [f"w{number}" for number in range(1, devices + 1)]
    rows = [
        DeviceOutcome(
            node=name,
            kind=f"kind {number % 3}",
            here_s=seconds,
            busy_s=third_s,
            wire_s=0.0,
            batches=5,
            bytes_up=1,
            bytes_down=1,
            energy_wh=0.1,
            failures=0,
            is_hot=False,
        )
        for number, name in enumerate(names)
    ]
    points = [Point(at_s=share * seconds, version=1, epoch=1, accuracy=share, loss=1.0) for share in (0.5, 0.8, 0.971)]
    return Outcome(
        state=JobState.FINISHED,
        reason="3 of 3 epochs",
        seconds=seconds,
        rounds=30,
        epochs=3,
        goal=0.9,
        is_system_only=not learns,
        evaluations=tuple(points),
        refused=1,
        leases_expired=1,
        crashes=1,
        devices=tuple(rows),
        lanes=tuple(DeviceTimeline(row.node, row.kind, spans) for row in rows[:LANES_MAX]),
        notes=(Note(-1.0, "w1", "slow(w1, 2x)"), Note(third_s, "home", "crash(home, at=84)")),
        rates=((1.0, 1), (seconds / 2, 15), (seconds, 30)),
        events=1000,
    )


def pixels(path: Path) -> np.ndarray:
    """The drawn picture, each pixel as red, green and blue of 0 to 255."""
    from matplotlib.image import imread

    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (1500, 1000)
    image: np.ndarray = np.rint(255 * imread(path)[:, :, :3]).astype(int)
    assert image.std() > 10
    return image


def share_of(image: np.ndarray, colour: tuple[int, int, int]) -> float:
    return float(np.all(image == colour, axis=2).mean())


@pytest.mark.parametrize("devices", [1, 40, 200])
def test_a_picture_shows_lanes(tmp_path: Path, devices: int) -> None:
    path = tmp_path / "picture.png"
    draw([("mnist", outcome_of(devices))], path)
    image = pixels(path)
    # A third of the lanes, which are more than a tenth of the picture.
    assert share_of(image, TRAINING) > 0.03


@pytest.mark.parametrize(
    ("node", "least", "most"), [("w4", 0.00002, 0.00015), ("home", 0.0002, 0.01), ("w9", 0.0, 0.0)]
)
def test_faults_are_shown_on_the_lanes_they_struck(tmp_path: Path, node: str, least: float, most: float) -> None:
    path = tmp_path / "picture.png"
    draw([("mnist", replace(outcome_of(40), lanes=outcome_of(8).lanes, notes=(Note(50.0, node, "slow()"),)))], path)
    # The lanes alone: not the legend, nor the curve.
    assert least <= share_of(pixels(path)[600:880], FAULT) <= most


def test_two_plans_stand_side_by_side_on_one_scale(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    draw([("fast", outcome_of(12, seconds=100.0)), ("slow", outcome_of(12, seconds=200.0))], path)
    lanes = np.all(pixels(path)[600:850] == TRAINING, axis=2)
    left, right = lanes[:, :750].sum(), lanes[:, 750:].sum()
    assert right == pytest.approx(2 * left, rel=0.05)


def test_where_nothing_is_learned_versions_are_drawn(tmp_path: Path) -> None:
    learned, made, never = (tmp_path / name for name in ("learned.png", "made.png", "never.png"))
    draw([("a", outcome_of(3))], learned)
    draw([("a", outcome_of(3, learns=False))], made)
    draw([("a", replace(outcome_of(3), evaluations=()))], never)
    upper = slice(140, 500)
    assert not np.array_equal(pixels(learned)[upper], pixels(made)[upper])
    # The same curve; what differs is the reason that stands above it.
    assert np.array_equal(pixels(never)[upper], pixels(made)[upper])


def test_a_job_that_never_began_can_be_drawn(tmp_path: Path) -> None:
    nothing = replace(outcome_of(2), state=JobState.QUEUED, seconds=0.0, rounds=0, evaluations=(), rates=(), notes=())
    lanes = tuple(replace(lane, spans=()) for lane in nothing.lanes)
    draw([("a", replace(nothing, lanes=lanes))], tmp_path / "picture.png")
    pixels(tmp_path / "picture.png")


def test_signs_in_a_name_or_a_reason_are_drawn_as_they_are(tmp_path: Path) -> None:
    draw(
        [("$x^{", replace(outcome_of(2), state=JobState.FAILED, reason="raised $\\frac{ " * 40))],
        tmp_path / "picture.png",
    )
    draw([("$x^{", outcome_of(2)), ("_$$", outcome_of(2))], tmp_path / "two.png")
    pixels(tmp_path / "two.png")


def test_a_column_of_several_states_mixes_their_colours() -> None:
    # Ten seconds in two columns: all training, and then half of each.
    spans = (
        Span(DeviceActivity.TRAINING, 0.0, 5.0),
        Span(DeviceActivity.TRAINING, 5.0, 7.5),
        Span(DeviceActivity.EVALUATING, 7.5, 10.0),
    )
    first, second = lane_colours(DeviceTimeline("w1", "board", spans), 10.0, 2)
    assert tuple(first) == TRAINING
    assert second == pytest.approx(np.mean([TRAINING, EVALUATING], axis=0), abs=0.5)


def test_a_lane_is_no_finer_than_its_grain() -> None:
    # Grains from -1 to 4, from 4 to 9 and from 9 to 14.
    spans = (
        Span(DeviceActivity.TRAINING, 0.0, 2.0),
        Span(DeviceActivity.EVALUATING, 2.0, 4.0),
        Span(DeviceActivity.TRAINING, 4.0, 10.0),
    )
    colours = lane_colours(DeviceTimeline("w1", "board", spans, 5.0, -1.0), 10.0, 10)
    assert len({tuple(colour) for colour in colours[:4]}) == 1
    assert colours[0] == pytest.approx(np.mean([TRAINING, EVALUATING], axis=0), abs=0.5)
    assert {tuple(colour) for colour in colours[4:]} == {TRAINING}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "97.1 % after 4 min 05 s"),
        ({"state": "failed"}, "failed after 4 min 12 s"),
        ({"state": "running"}, "not over after 4 min 12 s"),
        ({"evaluations": ()}, "30 versions in 4 min 12 s"),
        ({"is_system_only": True, "rounds": 1}, "1 version in 4 min 12 s"),
    ],
)
def test_a_result_in_words(changes: dict[str, object], told: str) -> None:
    assert result_text(replace(outcome_of(1), **changes)) == told  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("span_s", "told"),
    [
        (0.0, "0.0 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (252.0, "4 min 12 s"),
        (7500.0, "2 h 05 min"),
        (300_000.0, "3 days 11 h"),
    ],
)
def test_spans_in_words(span_s: float, told: str) -> None:
    assert span_text(span_s) == told


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Misuse, match=r"pip install matplotlib"):
        draw([("a", outcome_of(1))], tmp_path / "picture.png")
    assert not (tmp_path / "picture.png").exists()


@pytest.mark.parametrize("plans", [0, PLANS_MAX + 1])
def test_too_few_or_too_many_plans_are_refused(tmp_path: Path, plans: int) -> None:
    with pytest.raises(Misuse, match="1 to 4 plans"):
        draw([("a", outcome_of(1))] * plans, tmp_path / "picture.png")
