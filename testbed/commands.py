"""The commands ``ip`` and ``tc``, run one at a time. Knows no network and no device."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

#: What one command may take. All of them only talk to the kernel.
COMMAND_TIMEOUT_S = 10.0


class NoNamespaces(Exception):
    """This machine, or this user, cannot make what was asked for. The text says why."""


def ip_path() -> str:
    return shutil.which("ip") or "ip"


def ip(*arguments: str) -> str:
    return run(ip_path(), *arguments)


def tc(*arguments: str) -> str:
    return run(shutil.which("tc") or "tc", *arguments)


def listed(what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ip("-j", what, "show") or "[]")
    # Older versions of ip list an empty entry for what a filter leaves out.
    return [entry for entry in found if entry]


def run(*words: str) -> str:
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            # Ctrl-C at the terminal is for us alone: a command that takes something down must not die of it.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNamespaces(f"{' '.join(words)}: {error}") from None
    if done.returncode:
        raise NoNamespaces(f"{' '.join(words)}: {done.stderr.strip() or f'ended with code {done.returncode}'}")
    return done.stdout
