"""What managers say against what runs: the comparison of ``benchmarks.managers``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.exporter.catalogue import CLUSTER
from shoal.exporter.families import Snapshot, samples_of
from shoal.exporter.serve import families_of
from shoal.plan import Plan
from shoal.states import JobState
from shoal.wire.messages import JobView, NodeView, Progress, Status, WorkerView
from testbed.managers.status import JobTruth, Told, Truth, series_in, wrong

pytestmark = pytest.mark.timeout(60)

AT = "127.0.0.1:7070"
TRUTH = Truth(
    devices=frozenset({"attic", "cellar"}),
    jobs={"faces": JobTruth(manager=AT, version_before=10, version_after=14, workers=frozenset({"attic"}))},
)


def status(*, version: int = 12, **job: object) -> Status:
    progress = Progress(
        job="faces",
        term=1,
        state="training",
        durable_version=version,
        workers=(WorkerView(node="attic", state="working"),),
    )
    view = JobView(
        job="faces",
        name="faces",
        state=JobState.RUNNING,
        plan=Plan(),
        term=1,
        progress=progress,
        heard_s=1.0,
        manager=AT,
    )
    nodes = (
        NodeView(node="attic", state="alive", job="faces", manager=AT),
        NodeView(node="cellar", state="alive", manager="127.0.0.1:7080"),
    )
    return Status(cluster="home", manager="manager", nodes=nodes, jobs=(replace(view, **job),))


def scrape(seen: Status) -> str:
    """What `shoal metrics` serves of this status."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Collector:
        def collect(self) -> object:
            return families_of(samples_of(Snapshot(status=seen), nodes_max=10), CLUSTER)

    registry = CollectorRegistry()
    registry.register(Collector())  # type: ignore[arg-type]
    return generate_latest(registry).decode()


def told(seen: Status, *, check: int = 0) -> Told:
    return Told(status=seen, check=check, sentence="all well", metrics=scrape(seen))


def test_an_answer_that_is_so_has_nothing_wrong() -> None:
    assert wrong(TRUTH, told(status())) == []


def test_series_are_read_with_their_labels() -> None:
    assert list(series_in('# HELP a b\na{x="1",y="b c"} 2.5\nplain 1\n')) == [
        ("a", {"x": "1", "y": "b c"}, 2.5),
        ("plain", {}, 1.0),
    ]


def test_a_check_that_alarms_for_nothing_is_wrong() -> None:
    assert wrong(TRUTH, told(status(), check=1)) == ["status --check is 1: all well"]


def test_devices_that_are_lost_missing_or_at_another_manager_are_wrong() -> None:
    well = status()
    attic, cellar = well.nodes
    lost = replace(well, nodes=(attic, replace(cellar, state="lost", reason="cut")))
    assert wrong(TRUTH, told(lost)) == ["cellar is lost: cut", "metrics: 1 devices alive and 1 others"]
    missing = replace(well, nodes=(attic,))
    assert wrong(TRUTH, told(missing)) == ["it lists attic", "metrics: 1 devices alive and 0 others"]
    moved = replace(well, nodes=(replace(attic, manager="x:1"), cellar))
    assert wrong(TRUTH, told(moved)) == [f"attic trains for faces at {AT}, not for 'faces' at 'x:1'"]


@pytest.mark.parametrize("version", [9, 15])
def test_a_version_that_is_older_or_newer_than_the_history_is_wrong(version: int) -> None:
    why = f"durable version {version}, and it went from 10 to 14"
    assert wrong(TRUTH, told(status(version=version))) == [f"faces: {why}", f"metrics: faces: {why}"]


def test_a_job_without_its_progress_its_manager_or_its_workers_is_wrong() -> None:
    found = wrong(TRUTH, told(status(progress=None)))
    assert found == [
        "faces is waiting: waiting for the first report from its leader",
        "faces has no progress",
        "metrics: no version of faces",
    ]
    assert wrong(TRUTH, told(status(manager=""))) == [f"faces is at {AT}, not at ''"]
    idle = Progress(job="faces", term=1, state="training", durable_version=12)
    assert wrong(TRUTH, told(status(progress=idle))) == ["faces does not show attic"]
    assert wrong(TRUTH, told(replace(status(), jobs=()))) == [
        "it has the open jobs ",
        "metrics: no version of faces",
    ]
