"""The protobuf classes of ``proto/shoal/v1/shoal.proto``, built from its compiled descriptor.

Loading the descriptor, rather than importing generated Python, leaves the choice of protobuf release to the
user's environment: generated code refuses any runtime older than the compiler that made it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "shoal.v1"
SERVICE = f"{PACKAGE}.Shoal"


def _load() -> descriptor_pool.DescriptorPool:
    # Read by its path: importlib.resources would load zipfile and more into every idle agent.
    raw = Path(__file__).with_name("contract.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(raw).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


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
