"""Where updates meet, in words: what is known is said, what is not known is not made up."""

from __future__ import annotations

from typing import Any

import pytest
from statuses import progress

from shoal.cli.render.topologies import chosen_of, kind_of, off_by, predicted_s, topology_text
from shoal.plan import Plan
from shoal.wire.encoding import to_json
from shoal.wire.messages import TopologyView

AUTO = Plan(topology="auto")
CHOSEN = (TopologyView(topology="star", batch_s=7.73), TopologyView(topology="shard", batch_s=1.45, chosen=True))


@pytest.mark.parametrize(
    ("values", "plan", "expected"),
    [
        ({"topology": "star"}, Plan(), "star"),
        ({"topology": "star", "round_s": 0.31}, Plan(), "star, 310 ms per batch"),
        ({"topology": "tree 1-4-16", "round_s": 4.1}, Plan(topology="tree"), "tree 1-4-16, 4.10 s per batch"),
        ({"topology": "star", "pace": "buffered", "round_s": 2.0}, Plan(), "star, buffered, 2.00 s per batch"),
        ({"topology": "star", "pace": "sync"}, AUTO, "star; auto has not chosen yet"),
        ({"topology": "star"}, Plan(pace="auto"), "star; auto has not chosen yet"),
        (
            {"topology": "shard over 3 of 4 workers", "predicted_s": 1.45, "alternatives": CHOSEN},
            AUTO,
            "shard over 3 of 4 workers, not measured yet (1.45 s predicted)",
        ),
        (
            {"topology": "shard over 4 of 4 workers", "predicted_s": 1.45, "round_s": 1.47, "alternatives": CHOSEN},
            AUTO,
            "shard over 4 of 4 workers, 1.47 s per batch (1.45 s predicted)",
        ),
        # A shard was chosen and is being set up: what was predicted for it is no word on the star that holds.
        (
            {"topology": "star", "predicted_s": 1.45, "round_s": 7.7, "alternatives": CHOSEN},
            AUTO,
            "star, 7.70 s per batch",
        ),
    ],
)
def test_one_line_says_it(values: dict[str, Any], plan: Plan, expected: str) -> None:
    assert topology_text(progress(**values), plan) == expected


def test_measured_is_compared_with_what_was_predicted_for_the_same_shape() -> None:
    shard = progress(topology="shard over 4 of 4 workers", predicted_s=2.0, round_s=2.5, alternatives=CHOSEN)
    assert off_by(shard) == pytest.approx(0.25)
    assert off_by(progress(topology="star", predicted_s=2.0, round_s=2.5, alternatives=CHOSEN)) is None
    assert off_by(progress(topology="shard", predicted_s=2.0, alternatives=CHOSEN)) is None
    assert off_by(progress(topology="shard", round_s=2.0)) is None
    assert predicted_s(progress(topology="star", predicted_s=2.0)) == 2.0


def test_where_nobody_waits_it_is_compared_with_what_was_predicted_for_that() -> None:
    flowing = TopologyView(topology="star", pace="buffered", batch_s=0.9)
    star = TopologyView(topology="star", batch_s=2.0, chosen=True)
    told = progress(topology="star", pace="buffered", predicted_s=2.0, round_s=1.0, alternatives=(star, flowing))
    assert predicted_s(told) == 0.9
    assert chosen_of(told) == flowing
    assert topology_text(told, AUTO) == "star, buffered, 1.00 s per batch (900 ms predicted)"
    in_step = progress(topology="star", pace="sync", predicted_s=2.0, alternatives=(star, flowing))
    assert (predicted_s(in_step), chosen_of(in_step)) == (2.0, star)
    assert predicted_s(progress(topology="tree 1-2-4", pace="buffered", predicted_s=2.0, alternatives=(star,))) == 0.0
    assert chosen_of(progress(topology="star")) is None


def test_what_a_leader_writes_is_no_command_to_the_terminal() -> None:
    assert "\x1b" not in topology_text(progress(topology="star\x1b[2J" + "x" * 90, pace="\x1b[31m"), Plan())
    assert kind_of("") == ""


def test_a_shape_reaches_a_job_from_python() -> None:
    """``shoal.fit(task, plan=shoal.Plan(topology=...))`` sends the plan as these plain values."""
    plain = to_json(Plan(topology="tree", aggregators=3, pace="auto"))
    assert (plain["topology"], plain["aggregators"], plain["pace"]) == ("tree", 3, "auto")
