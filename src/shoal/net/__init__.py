"""Sessions between nodes, over gRPC; how gRPC waits for sockets is settled here, before any module imports it."""

from __future__ import annotations

import os

#: gRPC's EventEngine hands every read and write of a socket to another thread. The thread that waits for events can do
#: them itself, as gRPC did before: a device in a shard then changes threads a third as often (benchmarks/README.md,
#: ``shapes``). gRPC reads this once, as it is imported; a release that does not know the names goes on without.
_ENGINE_VARIABLE = "GRPC_EXPERIMENTS"
_WITHOUT_HANDING_OVER = "-event_engine_client,-event_engine_listener"

os.environ.setdefault(_ENGINE_VARIABLE, _WITHOUT_HANDING_OVER)
