"""The contract works with the one of the protocol before, and what is signed means the same to both."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from shoal.plan import Plan
from shoal.until import Goal, Plateau, Until
from shoal.wire.encoding import to_json
from shoal.wire.messages import Dataset, JobSpec

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import contract_changes  # noqa: E402

PREVIOUS = (ROOT / "proto" / "previous.binpb").read_bytes()
PRESENT = (ROOT / "src" / "shoal" / "wire" / "contract.binpb").read_bytes()
DEFAULTS = Path(__file__).with_name("signed_defaults.json")


def defaults() -> dict[str, Any]:
    """Every default of a signed field. ``python tests/unit/wire/test_protocol_before.py`` writes them."""
    found = {}
    for cls in (JobSpec, Dataset, Plan, Until, Goal, Plateau):
        for field in dataclasses.fields(cls):
            made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            if made is not dataclasses.MISSING:
                found[f"{cls.__name__}.{field.name}"] = to_json(made)
    return found


def test_no_field_of_the_protocol_before_is_gone_or_means_something_else() -> None:
    assert contract_changes.breaks(PREVIOUS, PRESENT) == []
    assert contract_changes.breaks(PRESENT, PREVIOUS), "something was added, or there is no need of another protocol"


def test_a_change_that_breaks_is_named() -> None:
    changed = FileDescriptorSet.FromString(PREVIOUS)
    messages = {message.name: message for message in changed.file[0].message_type}
    messages["Hello"].field[0].number = 99
    messages["Hello"].field[1].type = 1
    del messages["Heartbeat"].field[0]
    messages["Leave"].name = "Goodbye"
    assert sorted(contract_changes.breaks(PREVIOUS, changed.SerializeToString())) == [
        "Heartbeat.seq is gone",
        "Hello.incarnation is of another type",
        "Hello.node is number 99, and was 1",
        "Leave is gone",
    ]


def test_no_default_of_a_signed_field_changed() -> None:
    """It is left out of what is signed: two releases would read two jobs. Add a field or a value instead."""
    known, present = json.loads(DEFAULTS.read_text()), json.loads(json.dumps(defaults()))
    assert {name: present.get(name, "gone") for name in known} == known
    assert set(present) == set(known), "add the new field to the table"


if __name__ == "__main__":
    DEFAULTS.write_text(json.dumps(defaults(), indent=1, sort_keys=True) + "\n")
