"""Messages and the protobuf contract: the same fields, the same types, and defaults that survive."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto

from shoal import plan
from shoal.errors import Misuse, PeerViolation
from shoal.plan import Plan, Until
from shoal.states import JobState
from shoal.wire import contract, messages
from shoal.wire.encoding import ITEM_BYTES, decode_envelope, encode_envelope, from_json, to_json
from shoal.wire.messages import (
    Assign,
    Dataset,
    JobSpec,
    JobView,
    Message,
    Progress,
    Ready,
    Status,
    Submit,
    WorkerView,
)

SHA = "0" * 64
CLASSES = {**messages.MESSAGES, "Plan": plan.Plan, "Until": plan.Until}
SPEC = JobSpec(
    job="a",
    name="a",
    entry="task:A",
    bundle=SHA,
    initial=SHA,
    train=Dataset(manifest=SHA, examples=9),
    test=Dataset(),
    plan=Plan(until=Until(accuracy=0.5)),
)


def again(message: Message) -> Any:
    return decode_envelope(encode_envelope(message))[0]


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_class_and_its_twin_in_the_contract_have_the_same_fields(name: str) -> None:
    twin = contract.proto_class(name).DESCRIPTOR
    assert [f.name for f in fields(CLASSES[name]) if f.name != "tensors"] == [f.name for f in twin.fields]


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_field_types_agree(name: str) -> None:
    kinds = {"str": "string", "JobState": "string", "int": "int64", "float": "double", "bool": "bool", "bytes": "bytes"}
    twin = contract.proto_class(name).DESCRIPTOR
    assert bool(twin.fields) == bool(fields(CLASSES[name]))
    if not twin.fields:
        # Such as a question that is only asked.
        return
    names = {getattr(twin.fields[0], f"TYPE_{k.upper()}"): k for k in set(kinds.values()) | {"message"}}
    for field in fields(CLASSES[name]):
        if field.name == "tensors":
            continue
        written = str(field.type).removeprefix("tuple[").removesuffix(", ...]").removesuffix(" | None")
        there = twin.fields_by_name[field.name]
        assert names[there.type] == kinds.get(written, "message")
        if there.message_type is not None:
            assert there.message_type.name == written
        if there.message_type is None:
            assert there.has_presence == (" | None" in str(field.type))


def test_the_contract_has_no_message_without_a_class() -> None:
    assert set(contract.ENVELOPE_FIELDS.values()) <= set(CLASSES)


def test_field_numbers_are_never_reused() -> None:
    for name in CLASSES:
        twin = contract.proto_class(name).DESCRIPTOR
        told = DescriptorProto()
        twin.CopyToProto(told)
        # What a field was that is gone is reserved for good.
        gone = {number for span in told.reserved_range for number in range(span.start, span.end)}
        numbers = [f.number for f in twin.fields]
        assert numbers == [number for number in range(1, len(numbers) + len(gone) + 1) if number not in gone], name


def test_what_is_absent_stays_absent_and_zero_stays_zero() -> None:
    absent = Progress(job="a", term=1, state="training")
    assert again(absent).accuracy is None
    assert again(Progress(job="a", term=1, state="training", accuracy=0.0)).accuracy == 0.0
    assert again(Ready(job="a")).holds_version == -1
    view = JobView(job="a", name="a", state=JobState.QUEUED, plan=Plan())
    assert again(Status(cluster="c", manager="m", jobs=(view,))).jobs[0].progress is None


def test_nested_messages_come_back_whole() -> None:
    assign = Assign(job="a", role="worker", term=3, leader="m", spec=SPEC, reason="worker 1 of up to 4")
    assert again(assign) == assign
    workers = (WorkerView(node="b", state="working"), WorkerView(node="c", state="late", reason="…"))
    progress = Progress(job="a", term=1, state="training", loss=0.25, workers=workers)
    assert again(progress) == progress


def test_a_nested_message_that_breaks_a_rule_is_the_peers_fault() -> None:
    envelope = contract.Envelope()
    envelope.submit.spec.job = "a"
    with pytest.raises(PeerViolation, match="is not a choice Shoal has"):
        decode_envelope(envelope.SerializeToString())
    envelope.ParseFromString(encode_envelope(Submit(spec=SPEC)))
    envelope.submit.spec.plan.batch_size = 0
    with pytest.raises(PeerViolation, match="batch_size is at least 1, not 0"):
        decode_envelope(envelope.SerializeToString())


def test_fields_a_newer_peer_added_are_ignored() -> None:
    # Field 99 of Envelope and of Ready, both varints.
    inner = bytes.fromhex("0a0161 980601")
    assert decode_envelope(bytes.fromhex("52") + bytes([len(inner)]) + inner + bytes.fromhex("980601"))[0] == Ready(
        job="a", holds_version=0
    )


def test_json_round_trips_what_the_store_keeps() -> None:
    kept = json.loads(json.dumps(to_json(SPEC)))
    assert kept["plan"]["until"] == {
        "accuracy": 0.5,
        "epochs": None,
        "seconds": None,
        "endless": False,
        "goals": [],
        "plateaus": [],
    }
    assert from_json(JobSpec, kept) == SPEC


def test_json_of_an_older_release_takes_defaults() -> None:
    kept = to_json(SPEC)
    del kept["kwargs_json"]
    del kept["plan"]["checkpoint_every_s"]
    assert from_json(JobSpec, kept) == SPEC
    del kept["bundle"]
    with pytest.raises(Misuse, match="JobSpec was stored without 'bundle'"):
        from_json(JobSpec, kept)


def test_a_full_progress_report_fits_an_envelope() -> None:
    # 200 workers in trouble, with the longest names and reasons that need four bytes a character.
    from shoal.roles.leader.workers import VIEWS_MAX, Workers
    from shoal.roles.machine import Machine

    crew = Workers(Machine(), job="digits")
    for number in range(VIEWS_MAX + 50):
        crew.add(f"{number:063}").reason = "😀" * 4096
    views = crew.views(typical_s=1.0)
    assert len(views) == VIEWS_MAX
    progress = Progress(job="j" * 63, term=1, state="training", reason="😀" * 4096, workers=views)
    assert again(progress) == progress


def test_a_state_that_no_job_has_is_refused() -> None:
    with pytest.raises(PeerViolation, match="not a state of a job"):
        Progress(job="a", term=1, state="asleep")
    envelope = contract.Envelope()
    envelope.status.jobs.add(job="a", name="a", state="asleep")
    with pytest.raises(PeerViolation, match="'asleep' is not a JobState"):
        decode_envelope(envelope.SerializeToString())


def test_values_of_tensors_have_the_bytes_that_numpy_gives_them() -> None:
    assert {name: np.dtype(name).itemsize for name in ITEM_BYTES} == ITEM_BYTES
