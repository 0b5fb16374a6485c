"""How uvicorn serves a page of Shoal: few connections, small requests, TLS from 1.2 on, no word of itself."""

from __future__ import annotations

import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import uvicorn

from shoal.errors import Misuse
from shoal.impatient_http import impatient

_REQUEST_HEAD_BYTES = 16 << 10


def web_config(
    app: Any,
    *,
    connections_max: int,
    certificate: str | Path | None,
    key: str | Path | None,
    options: str,
    ws: dict[str, Any] | None = None,
) -> uvicorn.Config:
    """``options``: what the two files are called on the command line. ``ws``: settings of WebSockets; None: there are
    none. Raises Misuse for files that cannot be used."""
    # A stream that is cut off ends in the middle of an answer: that is no defect to tell of.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        app,
        http=impatient(connections_max),
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=connections_max,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=_REQUEST_HEAD_BYTES,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        **(ws or {"ws": "none"}),
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise Misuse(f"{options} cannot be used: {error}") from None
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return config


def listen(host: str, port: int, *, option: str) -> socket.socket:
    """A listening socket. ``option``: what a person changes where the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise Misuse(f"cannot listen on {host}:{port} ({error.strerror or error}): choose another {option}") from None
