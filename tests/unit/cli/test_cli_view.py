"""The live picture: right numbers, no more lines than there is room, and no trust in what peers write."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console
from statuses import JOB, evaluation, event, job, node, progress, status, story_of, worker

from shoal.cli.job_history import Story
from shoal.cli.render.tables import events_table, jobs_table, nodes_table, versions_table
from shoal.cli.render.view import devices_of, render, until_text
from shoal.plan import Plan, Until
from shoal.states import JobState
from shoal.wire.messages import Facts, PublishedView, ServedView, Status, TopologyView, VersionList


def drawn(story: Story, width: int = 100, height: int = 30, note: str = "") -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(render(story, width=width, height=height, note=note))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_an_ordinary_job() -> None:
    text = "\n".join(drawn(story_of(status()), note="Ctrl-C leaves"))
    for expected in (
        "mnist",
        JOB,
        "● training",
        "1 min 24 s",
        "epoch 2  until 98 % accuracy or 5 epochs",
        "546/938 batches   58%",
        "accuracy 96.77 %",
        "loss 0.1034",
        "version 412 (saved 400)",
        "12.3 rounds/s",
        "3.2k examples/s",
        "2.3x slower",
        "4.0 MB",
        "joined",
        "Ctrl-C leaves",
    ):
        assert expected in text


def test_how_late_updates_come_is_shown_where_they_do() -> None:
    assert "versions late" not in "\n".join(drawn(story_of(status())))
    late = progress(staleness=2.0, staleness_max=9)
    text = "\n".join(drawn(story_of(status(job(progress=late))), width=160))
    assert "updates 2 versions late (at most 9)" in text


def test_whether_one_more_device_would_help_is_shown_once_that_is_known() -> None:
    unsure = progress(saturation="unsure", saturation_reason="7 workers: no smaller number of workers was measured")
    assert "smaller crew" not in "\n".join(drawn(story_of(status(job(progress=unsure))), width=160))
    full = progress(
        saturation="saturated",
        saturation_reason="saturated at 6 workers: one more gains 1.2 % ± 0.8 %",
        saturated_at=6,
        round_s=4.1,
        sync_s=3.12,
    )
    lines = drawn(story_of(status(job(progress=full))), width=160)
    (line,) = [line for line in lines if "saturated at 6 workers: one more gains 1.2 % ± 0.8 %" in line]
    assert "a round 4.10 s, 3.12 s not training" in line
    many = tuple(worker(number) for number in range(50))
    crowded = progress(saturation="gains", saturation_reason="worth it", workers=many)
    events = tuple(event(seq) for seq in range(1, 90))
    assert len(drawn(story_of(status(job(progress=crowded), events=events)), height=30)) <= 30


def test_where_updates_meet_is_one_line_and_the_picture_still_fits() -> None:
    assert not any("shape " in line for line in drawn(story_of(status()), width=160))
    shaped = progress(
        topology="shard over 16 of 16 workers",
        topology_reason="16 of 16 nodes lead 6.2 % of the model each",
        predicted_s=1.4495,
        round_s=1.47,
        alternatives=(
            TopologyView(topology="star", batch_s=7.7),
            TopologyView(topology="shard", batch_s=1.4495, chosen=True),
        ),
        saturation="gains",
        saturation_reason="worth it",
        workers=tuple(worker(number) for number in range(50)),
    )
    told = status(job(progress=shaped), events=tuple(event(seq) for seq in range(1, 90)))
    lines = drawn(story_of(told), width=160)
    (line,) = [line for line in lines if "shard over 16 of 16 workers, 1.47 s per batch (1.45 s predicted)" in line]
    assert "16 of 16 nodes lead 6.2 %" in line
    assert len(lines) <= 30
    narrow = drawn(story_of(told), width=60)
    assert max(map(len, narrow)) <= 60
    assert len(narrow) <= 30


def test_a_job_without_an_end_says_so() -> None:
    endless = job(plan=Plan(until=Until(endless=True)))
    assert "epoch 2  until it is stopped" in "\n".join(drawn(story_of(status(endless))))
    assert until_text(Until(endless=True, epochs=3)) == "3 epochs"


def test_what_is_served_is_one_line_and_the_picture_still_fits() -> None:
    served = ServedView(version=1031, sha256="0" * 64, accuracy=0.94, examples=1204, reason="the first of all")
    lines = drawn(story_of(status(job(served=served))), height=20)
    assert "serves version 1,031, 94.00 % of 1,204  the first of all" in "\n".join(lines)
    assert len(lines) <= 20
    held = replace(served, accuracy=None, hold="version 1,040 was withdrawn")
    text = "\n".join(drawn(story_of(status(job(served=held)))))
    assert "serves version 1,031  held back: version 1,040 was withdrawn" in text


def test_a_job_nobody_leads_yet() -> None:
    queued = job(state=JobState.QUEUED, reason="waiting for a leader", progress=None)
    text = "\n".join(drawn(story_of(status(queued, events=(), evaluations=()))))
    assert "● queued for 1 min 24 s  waiting for a leader" in text
    assert "until 98 % accuracy or 5 epochs" in text
    assert "0 devices" in text
    assert "none yet" in text
    assert "nothing yet" in text


@pytest.mark.parametrize(("width", "height"), [(100, 30), (60, 24), (200, 60), (40, 20), (80, 10)])
@pytest.mark.parametrize("devices", [0, 1, 8, 200])
def test_it_fits_whatever_the_terminal(width: int, height: int, devices: int) -> None:
    workers = tuple(worker(number, reason="r" * 400) for number in range(devices))
    events = tuple(event(seq, reason="because " * 100) for seq in range(1, 90))
    lines = drawn(
        story_of(status(job(progress=progress(workers=workers)), events=events)), width, height, note="n" * 300
    )
    assert max(map(len, lines)) <= width
    # Below 18 lines there is no room for three devices and three events: the terminal scrolls.
    assert len(lines) <= max(height, 18)


def test_where_not_all_devices_fit_those_in_trouble_are_shown() -> None:
    workers = (*(worker(number) for number in range(100)), worker(777, state="suspect"), worker(778, failures=3))
    text = "\n".join(drawn(story_of(status(job(progress=progress(workers=workers))))))
    assert "device-777" in text
    assert "device-778" in text
    assert "102 devices, 87 not shown" in text


def test_what_peers_write_is_neither_markup_nor_a_command() -> None:
    sly = worker(1, state="\x1b[2J", reason="[red]boo[/red] \x1b]0;owned\x07 [/nonsense]")
    told = status(
        job(name="[bold]x[/]", reason="\x1b[31mred", progress=progress(reason="", workers=(sly,))),
        events=(event(1, kind="[blink]", reason="line\nbreak\x1b[H"),),
    )
    lines = drawn(story_of(told))
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]boo[/red]" in text
    assert "[bold]x[/]" in text
    assert "line break" in text


def test_strange_numbers_are_drawn() -> None:
    odd = progress(
        batches_total=0,
        accuracy=math.inf,
        loss=-math.inf,
        rounds_per_s=math.inf,
        examples_per_s=1e300,
        bytes_up=(1 << 62) - 1,
        seconds=1e12,
        workers=(worker(1, lease_s=math.inf, slowness=math.inf, batches=-5),),
    )
    assert "∞" in "\n".join(drawn(story_of(status(job(progress=odd), events=(event(1 << 60),)))))


def test_a_finished_job_shows_the_epoch_it_finished() -> None:
    done = job(
        state=JobState.FINISHED,
        reason="reached 98 %",
        progress=progress(state=JobState.FINISHED, epoch=2, batches_applied=0),
    )
    text = "\n".join(drawn(story_of(status(done))))
    assert "● finished 1 min 24 s ago  reached 98 %" in text
    assert "epoch 2" in text
    assert "all batches  100%" in text


def test_devices_the_leader_has_not_met_are_loading() -> None:
    told = status(nodes=(node("attic", job=JOB), node("cellar", job=JOB, state="suspect"), node("other")))
    assert [(w.node, w.state) for w in devices_of(story_of(told))] == [
        ("attic", "loading"),
        ("cellar", "suspect"),
        ("device-1", "working"),
        ("device-2", "working"),
    ]


def test_tables_of_strange_things() -> None:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(nodes_table((node("bare", facts=Facts()), node("full", heard_s=3.0, memory_free_mb=900))))
    console.print(nodes_table((node("room", facts=Facts(is_hub=True)),)))
    console.print(jobs_table((job(), job(progress=None, name="[x]\x1b"))))
    console.print(events_table((event(1), event(2, reason="\x1b[2J"))))
    bare = PublishedView(version=3, number=1, at_s=70.0, reason="\x1b[2J")
    served = ServedView(version=1040, sha256="", reason="better")
    listed = VersionList(job=JOB, versions=(bare, PublishedView(version=1040, number=2, at_s=99.0)), served=served)
    console.print(versions_table(listed, now_s=100.0))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b" not in text
    assert "none: cannot train" in text
    assert "hub: sums" in text
    assert "3.0 s ago" in text
    assert "1,040   served" in text
    assert "30 s ago" in text


def test_a_story_adds_up_what_statuses_tell() -> None:
    story = Story(JOB)
    first = story.take(status(events=(event(1), event(2)), evaluations=(evaluation(1, 0.9),)))
    assert (first.state, len(first.events), len(first.evaluations)) == ("training", 2, 1)
    second = story.take(status(events=(event(2), event(3)), evaluations=(evaluation(1, 0.9), evaluation(2, 0.95))))
    assert (second.state, [e.seq for e in second.events]) == ("", [3])
    assert [view.accuracy for view in second.evaluations] == [0.95]
    assert (story.last_event, list(story.curve), story.ended) == (3, [0.9, 0.95], False)


def test_a_story_of_a_job_that_is_gone() -> None:
    from shoal.errors import Misuse

    with pytest.raises(Misuse, match=f"no longer knows job {JOB}"):
        Story(JOB).take(Status(cluster="home", manager="manager"))
