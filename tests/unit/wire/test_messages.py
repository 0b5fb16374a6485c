"""Messages are valid once built; what is not says why."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from shoal.errors import PeerViolation
from shoal.plan import Plan
from shoal.wire import messages
from shoal.wire.limits import BATCHES_MAX, LABELLED_MAX, NAME_MAX_CHARS, REASON_MAX_CHARS
from shoal.wire.messages import (
    Admit,
    Blob,
    Dataset,
    Facts,
    Failed,
    Heartbeat,
    JobSpec,
    Leads,
    Leave,
    LogRecord,
    PartialSum,
    Ready,
    Update,
    Work,
    clip,
    with_tensors,
)

SHA = "ab" * 32


def spec(**changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "job": "digits-1",
        "name": "digits",
        "entry": "task:Digits",
        "bundle": SHA,
        "initial": SHA,
        "train": Dataset(manifest=SHA, examples=10),
        "test": Dataset(),
        "plan": Plan(batch_size=2),
    }
    return JobSpec(**values | changes)


@pytest.mark.parametrize(
    "job",
    ["../etc", "a/b", "UPPER", "-x", "a" * 64, "a b", "a\n", "a\0b", "ä", "."],
)
def test_ids_are_safe_as_file_names(job: str) -> None:
    with pytest.raises(PeerViolation, match=r"Ready\.job"):
        Ready(job=job)


@pytest.mark.parametrize("job", ["a", "0", "digits-2026-01-01", "a" * 63])
def test_ordinary_ids_pass(job: str) -> None:
    assert Ready(job=job).job == job


def test_text_is_bounded_names_short_and_reasons_long() -> None:
    assert Facts(host="x" * NAME_MAX_CHARS)
    with pytest.raises(PeerViolation, match=r"Facts\.host has 129 characters; the maximum is 128"):
        Facts(host="x" * (NAME_MAX_CHARS + 1))
    assert Leave(reason="x" * REASON_MAX_CHARS)
    with pytest.raises(PeerViolation, match=r"Leave\.reason has 4097 characters"):
        Leave(reason="x" * (REASON_MAX_CHARS + 1))
    with pytest.raises(PeerViolation, match="NUL"):
        Leave(reason="a\0b")


def test_numbers_are_numbers_in_range() -> None:
    with pytest.raises(PeerViolation, match=r"Heartbeat\.load is not a number"):
        Heartbeat(seq=1, load=float("nan"))
    for seq in (1 << 62, -(1 << 62)):
        with pytest.raises(PeerViolation, match=r"Heartbeat\.seq is out of range"):
            Heartbeat(seq=seq)


@pytest.mark.parametrize("endpoint", ["", "10.0.0.7:7071", "pi.local:0", "[fe80::1]:7071", "[::ffff:1.2.3.4]:1"])
def test_a_leader_is_found_at_a_host_and_a_port(endpoint: str) -> None:
    assert Leads(job="digits", term=1, endpoint=endpoint).endpoint == endpoint


@pytest.mark.parametrize("endpoint", ["pi.local", ":7071", "pi:port", "pi:7071/x", "a b:1", "fe80::1:7071", "x:123456"])
def test_a_leader_cannot_be_dialled_anywhere_else(endpoint: str) -> None:
    with pytest.raises(PeerViolation, match="it must be HOST:PORT"):
        Leads(job="digits", term=1, endpoint=endpoint)


def test_what_leaders_say_and_hear_is_as_strict() -> None:
    with pytest.raises(PeerViolation, match=r"Admit\.nodes has an entry that is not an id"):
        Admit(job="digits", term=1, nodes=("a", "../b"))
    with pytest.raises(PeerViolation, match="cannot be printed"):
        LogRecord(job="digits", term=1, kind="\x1b[2J", reason="")
    for rate in (-1.0, float("inf")):
        with pytest.raises(PeerViolation, match="it must be finite and at least 0"):
            Heartbeat(seq=1, link_bytes_per_s=rate)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"job": ""}, "a job needs an id"),
        ({"bundle": "latest"}, "bundle is named by its sha256, not 'latest'"),
        ({"initial": SHA.upper()}, "initial is named by its sha256"),
        ({"train": Dataset()}, "at least one training example"),
        ({"train": Dataset(examples=BATCHES_MAX + 1), "plan": Plan(batch_size=1)}, "Set a larger batch_size"),
    ],
)
def test_a_job_that_cannot_run_is_refused(changes: dict[str, Any], told: str) -> None:
    assert spec()
    with pytest.raises(PeerViolation, match=told):
        spec(**changes)


def test_content_is_named_by_its_hash() -> None:
    assert Blob(sha256=SHA)
    for name in ("", "abc", "../" + SHA, SHA + "0"):
        with pytest.raises(PeerViolation, match="named by its sha256"):
            Blob(sha256=name)
    with pytest.raises(PeerViolation, match="named by its sha256"):
        Dataset(manifest="x")
    with pytest.raises(PeerViolation, match=r"Dataset\.examples is -1"):
        Dataset(examples=-1)


def test_free_text_is_made_to_fit() -> None:
    assert clip("short") == "short"
    assert clip("a\0b") == "a b"
    long = clip("x" * 9999)
    assert len(long) == REASON_MAX_CHARS
    assert long.endswith("…")
    assert len(clip("x" * 50, 10)) == 10
    # A file name that is not UTF-8, as Python quotes it in an error.
    assert clip("no file caf\udce9.txt") == "no file caf?.txt"


def test_messages_do_not_change_and_tensors_do_not_count_in_comparisons() -> None:
    failed = Failed(job="a", term=1, lease=2, reason="x")
    with pytest.raises(FrozenInstanceError):
        failed.lease = 3  # type: ignore[misc]
    one = Update(job="a", term=1, lease=1, version=1, examples=1, tensors={"delta": np.zeros(2)})
    assert one == with_tensors(one, {"delta": np.ones(2)})
    assert "delta" not in repr(one)


def test_with_tensors_keeps_everything_else() -> None:
    work = Work(job="a", term=3, lease=7, kind="train", version=2, batches=(1, 2), deadline_s=5.0)
    carrying = with_tensors(work, {"model": np.zeros(1)})
    assert carrying == work
    assert list(carrying.tensors) == ["model"]


def test_every_message_between_nodes_has_one_recipient() -> None:
    answers = {
        "Done",
        "Denied",
        "Status",
        "Blob",
        "AskModel",
        "TokenMade",
        "TokenList",
        "Renewed",
        "VersionList",
        "SubmittedJob",
        "ActList",
        "ManagerView",
        "StoreView",
        "ContributionList",
    }
    views = {"TopologyView", "WorkerView", "NodeView", "JobView", "EventView", "EvaluationView", "TokenView", "ActView"}
    views |= {"ServedView", "PublishedView", "ExecutorView", "MetricView", "ContributionView"}
    parts = {"Facts", "Dataset", "DeviceState", "Hop", "JobSpec", "MemberKey", *views}
    every = set(messages.MESSAGES)
    recipients = {name: kind.rule.to for name, kind in messages.MESSAGES.items() if kind.rule.to}
    assert set(recipients) == every - answers - parts
    assert set(recipients.values()) == {"manager", "node", "leader", "leading", "aggregator", "worker", "peer", "pool"}


def test_an_update_counts_no_more_labels_than_it_has_examples() -> None:
    # 2^40 of one label would be all that a leader remembers of labels, for thousands of updates.
    told: dict[str, Any] = {"job": "job", "term": 1, "lease": 1, "version": 0, "examples": 32}
    assert Update(**told, labels=(30, 2)).labels == (30, 2)
    for labels in ((30, 3), (0, 1 << 40)):
        with pytest.raises(PeerViolation, match="the update has 32 examples"):
            Update(**told, labels=labels)


def test_updates_of_mates_weigh_what_their_examples_can() -> None:
    told: dict[str, Any] = {"term": 1, "coordinator": "ant", "round": 1, "merge": 1, "of": ("ant", "bee")}
    assert PartialSum(**told, weight=2.0 * LABELLED_MAX).weight
    for weight in (0.0, -1.0, 1e308, float("inf")):
        with pytest.raises(PeerViolation, match="for 2 updates"):
            PartialSum(**told, weight=weight)
