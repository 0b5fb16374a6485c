"""Writes ``tab/src/contract.ts``: the fields of the messages that a tab says and hears, from the compiled contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from shoal.wire import contract

TARGET = Path(__file__).parents[1] / "tab" / "src" / "contract.ts"

#: What crosses between a tab and the manager. What else the contract has is of no use to a tab.
MESSAGES = (
    "Hello", "Welcome", "Heartbeat", "HeartbeatSeen", "Leave", "Assign", "Dismiss", "Ready", "Work", "Wait", "Offer",
    "Go", "Update", "Evaluated", "Failed", "UpdateRefused", "Finished", "Blob", "Denied",
)  # fmt: skip

_KINDS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_INT64: "int",
    FieldDescriptor.TYPE_INT32: "int",
    FieldDescriptor.TYPE_UINT64: "int",
    FieldDescriptor.TYPE_UINT32: "int",
}


def text() -> str:
    """The file's content."""
    envelope = contract.Envelope.DESCRIPTOR
    tags = {}
    found: dict[str, list[list[Any]]] = {}
    for field in envelope.fields:
        if field.message_type is not None and field.message_type.name in MESSAGES:
            tags[field.message_type.name] = field.number
            _describe(field.message_type, found)
    _describe(contract.TensorInfo.DESCRIPTOR, found)
    lines = [
        "// The messages that a tab says and hears, by number. Written by `python tools/tasks.py tab`; do not edit.",
        "",
        "/** [number, name, kind or message, is repeated, tells absent from empty] */",
        "export type Field = [number, string, string, boolean, boolean];",
        "",
        "/** Message -> its field in an envelope. */",
        f"export const TAGS: Record<string, number> = {json.dumps(tags)};",
        "",
        "export const FIELDS: Record<string, Field[]> = {",
    ]
    for name in sorted(found):
        lines += [f"  {name}: [", *(f"    {json.dumps(field)}," for field in found[name]), "  ],"]
    return "\n".join([*lines, "};", ""])


def _describe(message: Any, found: dict[str, list[list[Any]]]) -> None:
    if message.name in found:
        return
    rows = found[message.name] = []
    for field in message.fields:
        nested = field.message_type
        kind = nested.name if nested is not None else _KINDS[field.type]
        rows.append([field.number, field.name, kind, field.is_repeated, field.has_presence and not field.is_repeated])
        if nested is not None:
            _describe(nested, found)


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
