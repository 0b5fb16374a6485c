"""What a status becomes: families with bounded series, and counters that never go back."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shoal.exporter.catalogue import CLUSTER, DEVICE
from shoal.exporter.counters import Counters, Rising, loss_cause
from shoal.exporter.families import JOBS_MAX, REST, Snapshot, samples_of, shown_jobs
from shoal.plan import Plan
from shoal.states import JobState
from shoal.wire.messages import (
    EventView,
    JobView,
    MetricView,
    NodeView,
    Progress,
    ServedView,
    Status,
    WorkerView,
)


def progress(**told: Any) -> Progress:
    return Progress(**{"job": "mnist-1", "term": 1, "state": "training", **told})


def job(name: str = "mnist-1", **told: Any) -> JobView:
    given = {"job": name, "name": "mnist", "state": JobState.RUNNING, "plan": Plan(batch_size=10), "term": 1}
    return JobView(**{**given, "train_examples": 100, **told})


def status(*jobs: JobView, nodes: tuple[NodeView, ...] = (), events: tuple[EventView, ...] = ()) -> Status:
    return Status(cluster="home", manager="manager", nodes=nodes, jobs=jobs, events=events)


def told(snapshot: Snapshot, *, nodes_max: int = 200) -> dict[tuple[str, ...], float]:
    """(family, label values in the order of their names) -> value."""
    samples = samples_of(snapshot, nodes_max=nodes_max)
    keyed = {(s.family, *(s.labels[name] for name in sorted(s.labels))): s.value for s in samples}
    assert len(keyed) == len(samples), "no series twice: Prometheus would refuse the scrape"
    return keyed


def after(*statuses: Status, every_s: float = 1.0) -> dict[tuple[str, ...], float]:
    counters = Counters()
    for number, each in enumerate(statuses):
        counters.on_status(each, now_s=number * every_s)
    return told(Snapshot(status=statuses[-1], counters=counters, answered_by="a:1"))


def test_a_status_becomes_families() -> None:
    worker = WorkerView(node="attic", state="working", lease_s=0.5, slowness=1.5)
    known = progress(
        version=12,
        durable_version=10,
        epoch=2,
        batches_applied=3,
        examples_per_s=42.5,
        bytes_up=5,
        bytes_down=7,
        train_loss=0.3,
        topology="shard over 3 of 5 workers",
        workers=(worker,),
        metrics=(
            MetricView(name="accuracy", value=0.9),
            MetricView(name="loss", value=0.2, lower=True),
            MetricView(name="mae", value=2.5, lower=True),
            MetricView(name="f1", value=None),
        ),
    )
    nodes = (
        NodeView(node="attic", state="alive", heard_s=0.25),
        NodeView(node="cellar", state="lost"),
        NodeView(node="shed", state="alive", standing="drained"),
    )
    found = after(status(job(progress=known, leader="attic"), nodes=nodes))
    assert found["shoal_cluster_reachable",] == 1
    assert found["shoal_nodes", "a:1", "alive"] == 1
    assert found["shoal_nodes", "a:1", "drained"] == 1
    assert found["shoal_node_up", "a:1", "cellar"] == 0
    assert found["shoal_node_heartbeat_age_seconds", "a:1", "attic"] == 0.25
    assert ("shoal_node_heartbeat_age_seconds", "a:1", "cellar") not in found, "never heard is no age"
    assert found["shoal_node_slowness_ratio", "attic"] == 1.5
    assert found["shoal_jobs", "running"] == 1
    # codec, leader, manager, name, pace, shoal_job, topology: how many of how many is no label.
    assert found["shoal_job", "dense", "attic", "a:1", "mnist", "sync", "mnist-1", "shard"] == 1
    # Two whole epochs of 100, and three batches of 10.
    assert found["shoal_job_examples", "mnist-1"] == 230
    assert found["shoal_job_examples_per_second", "mnist-1"] == 42.5
    assert found["shoal_job_metric", "mae", "mnist-1"] == 2.5
    assert ("shoal_job_metric", "f1", "mnist-1") not in found
    assert found["shoal_job_accuracy_ratio", "mnist-1", "test"] == 0.9
    assert found["shoal_job_loss", "mnist-1", "train"] == 0.3
    assert found["shoal_job_bytes", "down", "mnist-1", "leader"] == 7
    assert found["shoal_job_workers", "mnist-1", "working"] == 1


def test_every_sample_is_of_the_catalogue_and_no_label_holds_a_reason() -> None:
    known = progress(reason="because", saturation_reason="flat", workers=(WorkerView(node="a", state="from-space"),))
    view = job(progress=known, reason="why it runs")
    snapshot = Snapshot(
        status=status(view, nodes=(NodeView(node="a", state="lost", reason="silent for 3 s"),)),
        served={"mnist-1": ServedView(version=4, sha256="ab" * 32, reason="better", hold="an operator said so")},
        certificate_expiry_s=1e9,
        disk_free_bytes=5,
        checkpoint_age_s={"mnist-1": 3.0},
    )
    by_name = {each.name: each for each in CLUSTER}
    for sample in samples_of(snapshot, nodes_max=200):
        assert set(sample.labels) == set(by_name[sample.family].labels), sample
        assert not {"because", "flat", "why it runs", "silent for 3 s", "better"} & set(sample.labels.values())
        assert "from-space" not in sample.labels.values(), "a leader's words make no new series"
    assert told(snapshot)["shoal_model_publishing_held", "mnist-1"] == 1


def test_names_are_in_base_units_and_counters_are_not_named_total() -> None:
    for each in (*CLUSTER, *DEVICE):
        assert each.name.startswith("shoal_")
        assert not each.name.endswith(("_total", "_info", "_ms", "_mb", "_percent"))
        assert each.help.endswith(".")
        assert "job" not in each.labels, "Prometheus owns the label job"


def test_a_manager_that_does_not_answer_is_told_and_nothing_else() -> None:
    found = told(Snapshot(status=None))
    assert found["shoal_cluster_reachable",] == 0
    assert not [key for key in found if key[0].startswith(("shoal_job", "shoal_node"))]


def test_what_is_not_a_number_is_left_out() -> None:
    worker = WorkerView(node="attic", state="working", lease_s=1.0, slowness=math.inf)
    nodes = (NodeView(node="attic", state="alive"),)
    found = after(status(job(progress=progress(workers=(worker,))), nodes=nodes))
    assert found["shoal_node_up", "a:1", "attic"] == 1
    assert ("shoal_node_slowness_ratio", "attic") not in found


# Bounds ----------------------------------------------------------------------------------------------------


def test_above_the_limit_the_devices_in_trouble_and_the_rest_as_one() -> None:
    nodes = [NodeView(node=f"pi-{i:04}", state="alive", heard_s=i / 1000) for i in range(1000)]
    nodes[700] = NodeView(node="pi-0700", state="lost", heard_s=60.0)
    nodes[800] = NodeView(node="pi-0800", state="suspect", heard_s=4.0)
    slow = WorkerView(node="pi-0900", state="working", lease_s=1.0, slowness=9.0)
    view = status(job(progress=progress(workers=(slow,))), nodes=tuple(nodes))
    found = told(Snapshot(status=view, answered_by="a:1"))
    up = {key[2]: value for key, value in found.items() if key[0] == "shoal_node_up"}
    assert len(up) == 51
    assert up["pi-0700"] == 0
    assert up["pi-0800"] == 0
    assert up["pi-0900"] == 1
    assert up[REST] == 950
    assert found["shoal_node_heartbeat_age_seconds", REST, REST] == 0.999
    assert found["shoal_nodes", "a:1", "alive"] == 998
    assert len(found) < 250, "a thousand devices make no thousand series"


def test_a_device_that_is_called_other_is_one_of_the_rest() -> None:
    nodes = tuple(NodeView(node=name, state="lost") for name in ("a", REST, "z1", "z2"))
    found = told(Snapshot(status=status(nodes=nodes)), nodes_max=3)
    assert {key[2] for key in found if key[0] == "shoal_node_up"} == {"a", "z1", REST}


def test_ended_jobs_go_after_an_hour_and_there_are_at_most_twenty() -> None:
    old = job("old", state=JobState.FINISHED, since_s=3601.0)
    unknown = job("unknown", state=JobState.FAILED, since_s=-1.0)
    ended = [job(f"ended-{i}", state=JobState.FINISHED, since_s=float(i)) for i in range(30)]
    running = job("running", since_s=9999.0)
    shown = [each.job for each in shown_jobs([*ended, old, unknown, running])]
    assert len(shown) == JOBS_MAX
    assert shown[:3] == ["running", "ended-0", "ended-1"]
    assert not {"old", "unknown"} & set(shown)


def test_devices_and_jobs_name_the_manager_that_has_them() -> None:
    nodes = (
        NodeView(node="attic", state="alive"),
        NodeView(node="cellar", state="alive", manager="b:1"),
        NodeView(node="shed", state="elsewhere", manager="b:1"),
    )
    found = after(status(job(manager="b:1"), job("mnist-2"), nodes=nodes))
    assert (found["shoal_nodes", "a:1", "alive"], found["shoal_nodes", "b:1", "alive"]) == (1, 1)
    assert (found["shoal_nodes", "b:1", "elsewhere"], found["shoal_nodes", "b:1", "lost"]) == (1, 0)
    assert found["shoal_node_up", "b:1", "shed"] == 1, "on its way is not lost"
    managers = {key[3] for key in found if key[0] == "shoal_job"}
    assert managers == {"a:1", "b:1"}


def test_of_many_open_jobs_those_that_never_start_are_shown() -> None:
    running = [job(f"runs-{i}", progress=progress(), heard_s=1.0, since_s=float(i)) for i in range(30)]
    queued = job("queued", state=JobState.QUEUED, since_s=86400.0)
    shown = [each.job for each in shown_jobs([*running, queued])]
    assert (shown[0], len(shown)) == ("queued", JOBS_MAX)


# Counters ----------------------------------------------------------------------------------------------------


def test_counters_rise_over_a_new_leader_and_a_model_that_went_back() -> None:
    first = job(progress=progress(version=10, bytes_up=1000, refused=3))
    # Another leader goes on from version 8, and counts bytes from 0.
    second = job(progress=progress(term=2, version=8, bytes_up=100, refused=1), term=2)
    third = job(progress=progress(term=2, version=9, bytes_up=150, refused=1), term=2)
    counters, seen = Counters(), []
    for number, view in enumerate((first, second, third)):
        counters.on_status(status(view), now_s=float(number))
        found = told(Snapshot(status=status(view), counters=counters))
        keys = ("shoal_job_versions", "shoal_updates_refused", "shoal_leader_changes")
        bytes_up = found["shoal_job_bytes", "up", "mnist-1", "leader"]
        seen.append((*(found[key, "mnist-1"] for key in keys), bytes_up))
    assert seen == [(10, 3, 0, 1000), (10, 4, 1, 1100), (11, 4, 1, 1150)]


@pytest.mark.parametrize("values", [[5, 3, 9], [0, 7, 7, 2, 8], [1, 0, 0, 1]])
def test_a_rising_total_never_falls(values: list[int]) -> None:
    rising, totals = Rising(), []
    for value in values:
        rising.read(value)
        totals.append(rising.total)
    assert totals == sorted(totals)
    assert totals[0] == values[0]


def test_device_seconds_are_sampled_and_a_long_silence_is_not_guessed() -> None:
    workers = tuple(WorkerView(node=n, state=s) for n, s in (("a", "working"), ("b", "waiting"), ("c", "late")))
    views = [status(job(progress=progress(workers=workers)))] * 3
    found = after(*views, every_s=2.0)
    assert found["shoal_device_seconds", "work", "mnist-1"] == 4
    assert found["shoal_device_seconds", "wait", "mnist-1"] == 8
    assert after(*views, every_s=10_000.0)["shoal_device_seconds", "work", "mnist-1"] == 0


def test_examples_of_local_data_are_the_leaders_rate_times_the_time() -> None:
    view = status(job(plan=Plan(data="local"), train_examples=0, progress=progress(examples_per_s=8.0)))
    assert after(view, view, view, every_s=2.0)["shoal_job_examples", "mnist-1"] == 32


def event(seq: int, kind: str, reason: str = "", at_s: float = 0.0) -> EventView:
    return EventView(seq=seq, at_s=at_s, kind=kind, reason=reason)


def test_events_are_counted_once_and_those_before_the_exporter_are_not() -> None:
    counters = Counters()
    view = status(job())
    counters.on_status(status(job(), events=(event(7, "device.lost", "attic: silent for 9.0 s"),)), now_s=0.0)
    counters.on_job("mnist-1", status(job(), events=(event(3, "lease.expired"), event(4, "job.evaluated", at_s=1e9))))
    assert not counters.losses
    later = (
        event(7, "device.lost", "attic: silent for 9.0 s"),
        event(8, "device.lost", "shed: the agent was stopped"),
    )
    counters.on_status(status(job(), events=later), now_s=1.0)
    of_job = (
        event(5, "lease.expired"),
        event(6, "lease.returned"),
        event(7, "device.lost", "x: cut, no reconnect within 2 s"),
    )
    for _ in range(2):
        counters.on_job("mnist-1", status(job(), events=of_job))
    found = told(Snapshot(status=view, counters=counters))
    assert found["shoal_node_losses", "left"] == 1
    assert found["shoal_node_losses", "cut"] == 1
    assert found["shoal_node_losses", "silent"] == 0
    assert found["shoal_leases", "expired", "mnist-1"] == 1
    assert found["shoal_leases", "returned", "mnist-1"] == 1
    assert found["shoal_job_evaluation_timestamp_seconds", "mnist-1"] == 1e9
    assert found["shoal_exporter_events_missed",] == 0


def test_events_that_came_too_fast_are_told_as_missed() -> None:
    counters = Counters()
    counters.on_status(status(job()), now_s=0.0)
    counters.on_job("mnist-1", status(job()))
    counters.on_job("mnist-1", status(job(), events=tuple(event(seq, "lease.expired") for seq in range(71, 121))))
    assert (counters.jobs["mnist-1"].leases["expired"], counters.missed) == (50, 70)


def test_a_job_that_came_later_is_counted_from_its_beginning() -> None:
    counters = Counters()
    counters.on_status(status(), now_s=0.0)
    counters.on_status(status(job()), now_s=1.0)
    counters.on_job(
        "mnist-1", status(job(), events=(event(1, "job.started"), event(2, "topology.changed", "star: 2 workers")))
    )
    assert told(Snapshot(status=status(job()), counters=counters))["shoal_formation_changes", "mnist-1"] == 1


def test_what_a_loss_was_by_the_managers_words() -> None:
    assert loss_cause("silent for 12.0 s") == "silent"
    assert loss_cause("connection closed, no reconnect within 1.5 s") == "cut"
    assert loss_cause("the agent was stopped") == "left"


def test_counters_of_jobs_that_are_gone_are_let_go() -> None:
    counters = Counters()
    counters.on_status(status(job()), now_s=0.0)
    counters.on_status(status(), now_s=1.0)
    assert counters.jobs == {}
