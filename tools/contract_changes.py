"""Compares two compiled contracts: which changes would keep nodes of the two from working together."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet


def breaks(previous: bytes, present: bytes) -> list[str]:
    """What the present contract takes from the one before, or means otherwise. Additions break nothing."""
    now = dict(_messages(present))
    found = []
    for name, message in _messages(previous):
        if name not in now:
            found.append(f"{name} is gone")
            continue
        fields = {field.name: field for field in now[name].field}
        found += [f"{name}.{field.name} {why}" for field in message.field if (why := _change(field, fields))]
    return found


def _messages(contract: bytes) -> Iterator[tuple[str, DescriptorProto]]:
    for file in FileDescriptorSet.FromString(contract).file:
        for message in file.message_type:
            yield message.name, message


def _change(field: FieldDescriptorProto, fields: dict[str, FieldDescriptorProto]) -> str:
    """What became of a field; empty: nothing."""
    now = fields.get(field.name)
    if now is None:
        return "is gone"
    if now.number != field.number:
        return f"is number {now.number}, and was {field.number}"
    if (now.type, now.type_name, now.label, now.proto3_optional) != (
        field.type,
        field.type_name,
        field.label,
        field.proto3_optional,
    ):
        return "is of another type"
    return ""
