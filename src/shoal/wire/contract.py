"""The protobuf classes of ``proto/shoal/v1/shoal.proto``, built from its compiled descriptor.

Loading the descriptor, rather than importing generated Python, leaves the choice of protobuf release to the
user's environment: generated code refuses any runtime older than the compiler that made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory

PACKAGE = "shoal.v1"
SERVICE = f"{PACKAGE}.Shoal"


def _load() -> descriptor_pool.DescriptorPool:
    # Read by its path: importlib.resources would load zipfile and more into every idle agent.
    raw = Path(__file__).with_name("contract.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in _files(raw):
        pool.AddSerializedFile(file)
    return pool


def _files(descriptors: bytes) -> Iterator[bytes]:
    """Yield the parts of a FileDescriptorSet, each behind a tag and its length. Protobuf's own class for it would take
    half a megabyte of every idle agent."""
    at = 0
    while at < len(descriptors):
        at, size, shift = at + 1, 0, 0
        while descriptors[at] & 0x80:
            size, shift, at = size | (descriptors[at] & 0x7F) << shift, shift + 7, at + 1
        size, at = size | descriptors[at] << shift, at + 1
        yield descriptors[at : at + size]
        at += size


_POOL = _load()


def proto_class(name: str) -> Any:
    """Return the protobuf class of a message in the contract, such as ``Update``."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


Frame: Any = proto_class("Frame")
Envelope: Any = proto_class("Envelope")
TensorInfo: Any = proto_class("TensorInfo")

#: Field of ``Envelope.message`` -> name of the message it carries.
ENVELOPE_FIELDS: dict[str, str] = {
    f.name: f.message_type.name for f in Envelope.DESCRIPTOR.oneofs_by_name["message"].fields
}
