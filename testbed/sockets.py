"""Sockets of this process in the network of a device, for measuring without a process on each. Knows no Shoal."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from testbed.commands import NoNamespaces

_NAMESPACES = Path("/var/run/netns")
_CLONE_NEWNET = 0x40000000

T = TypeVar("T")


def within(namespace: str, make: Callable[[], T]) -> T:
    """What this makes inside a namespace. A socket stays where it was made, in every thread."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def enter_and_make() -> None:
        # The thread moves, and ends there: this process stays where it is.
        try:
            _enter(namespace)
            answers.append(make())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=enter_and_make, name=f"in {namespace}")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]


def listener_in(namespace: str, host: str, port: int = 0) -> socket.socket:
    return within(namespace, lambda: socket.create_server((host, port), backlog=128))


def connection_from(namespace: str, to: tuple[str, int], *, timeout_s: float) -> socket.socket:
    return within(namespace, lambda: socket.create_connection(to, timeout=timeout_s))


def _enter(namespace: str) -> None:
    # os.setns comes with Python 3.12.
    descriptor = os.open(_NAMESPACES / namespace, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
            raise NoNamespaces(f"cannot enter {namespace}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)
