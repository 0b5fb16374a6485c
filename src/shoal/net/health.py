"""The standard gRPC health service, ``grpc.health.v1.Health/Check``, for callers that are members of the cluster.

Its two messages have one field each, so their bytes are written here: a package for them would be one more to install
on every device. ``Watch`` is not served, as the protocol allows.
"""

from __future__ import annotations

SERVICE = "grpc.health.v1.Health"

#: ``HealthCheckResponse`` with the field ``status``, number 1: SERVING is 1, NOT_SERVING is 2.
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"

#: A request names a service, or none for the whole server.
REQUEST_MAX_BYTES = 256


def asked_service(request: bytes) -> str:
    """Return the name in a ``HealthCheckRequest``: field 1, a string. Raises ValueError for other bytes."""
    if not request:
        return ""
    if len(request) > REQUEST_MAX_BYTES or len(request) < 2 or request[0] != 0x0A or request[1] != len(request) - 2:
        raise ValueError("not a HealthCheckRequest")
    return request[2:].decode()
