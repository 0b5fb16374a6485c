"""Calls of the C library that a trainer needs and Python's own modules lack. Linux; no policy."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_PR_SET_NO_NEW_PRIVS = 38
_PR_CAPBSET_DROP = 24
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
#: More capabilities than any kernel has. The first that the kernel does not have ends the loop.
_CAPABILITIES_MAX = 64

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_SLAVE = 1 << 1, 1 << 2, 1 << 12, 1 << 14, 1 << 19


def call(function: str, *arguments: int | str | ctypes.Array[ctypes.c_uint32] | None) -> str:
    """Call the C library. Return why the call failed, or ""."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if getattr(library, function)(*map(_passed, arguments)) == 0:
            return ""
    except (OSError, AttributeError):
        return os.strerror(errno.ENOSYS)
    return os.strerror(ctypes.get_errno())


def _passed(argument: int | str | ctypes.Array[ctypes.c_uint32] | None) -> object:
    if isinstance(argument, int):
        return ctypes.c_ulong(argument)
    return ctypes.c_char_p(argument.encode()) if isinstance(argument, str) else argument


def refuse_new_privileges() -> str:
    """Let no program that this process starts have more rights than it has. Return why that failed, or ""."""
    return call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def bound_capabilities() -> None:
    """Let no program that this process starts gain a capability. The process keeps its own for now."""
    for number in range(_CAPABILITIES_MAX):
        if call("prctl", _PR_CAPBSET_DROP, number, 0, 0, 0) == os.strerror(errno.EINVAL):
            break
    call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)


def drop_capabilities() -> None:
    """Give up every capability that this process holds; ``capabilities`` shows whether that worked."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    call("capset", header, (ctypes.c_uint32 * 6)())


def capabilities() -> int:
    """Return the capabilities that this process holds or may take, as bits, or -1 if they are not known."""
    held = 0
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(("CapInh:", "CapPrm:", "CapEff:", "CapAmb:")):
                held |= int(line.split()[1], 16)
    except (OSError, ValueError, IndexError):
        return -1
    return held
