"""Open files that an agent hands to its trainer, by number. Standard library only.

A trainer may have no right to open the agent's files, and must not get it. It receives only the open file that it
needs, to read, over a socket between the two (``SCM_RIGHTS``).
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import BinaryIO

from shoal.errors import Misuse

_NUMBER_BYTES = 8
#: How long to wait for a file. The agent sends it before the command that names it.
_WAIT_S = 10.0


def send_file(to: socket.socket, number: int, path: Path) -> None:
    """Open a file to read, and hand it over."""
    with path.open("rb") as file:
        send_open(to, number, file.fileno())


def send_open(to: socket.socket, number: int, fd: int) -> None:
    """Hand over a file that is open, with the rights with which it was opened."""
    socket.send_fds(to, [number.to_bytes(_NUMBER_BYTES, "big")], [fd])


def receive_file(from_: socket.socket, number: int) -> BinaryIO:
    """Return the file that was sent under this number. Drops those before it, whose commands were given up."""
    from_.settimeout(_WAIT_S)
    while True:
        try:
            said, descriptors, _, _ = socket.recv_fds(from_, _NUMBER_BYTES, 1)
        except OSError:
            said, descriptors = b"", []
        if not descriptors:
            raise Misuse(f"file {number} did not come with the command to open it")
        if said == number.to_bytes(_NUMBER_BYTES, "big"):
            return os.fdopen(descriptors[0], "rb")
        os.close(descriptors[0])
