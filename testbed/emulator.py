"""The emulator that the kernel starts for aarch64 programs, by binfmt_misc. Linux and root; knows no Shoal.

    with Emulator() as emulator:
        subprocess.run(["chroot", root, "uname", "-m"])       # aarch64
        emulator.name                                         # qemu-aarch64 7.2.22

A handler that the system has is used. If there is none, one is registered, and removed at the end.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.commands import NoNamespaces, run

HANDLERS = Path("/proc/sys/fs/binfmt_misc")
PROGRAM = "qemu-aarch64-static"
INSTALL = "apt-get install qemu-user-static debootstrap"

#: Ours: a run that finds it left behind by a killed one uses it.
HANDLER = "shoal-aarch64"
#: The head of every aarch64 program: ELF, 64 bits, little endian, an executable or a shared one, machine 183.
_MAGIC = bytes.fromhex("7f454c460201010000000000000000000200b700")
_MASK = bytes.fromhex("ffffffffffffff00fffffffffffffffffeffffff")


class Emulator:
    """While it is entered, this machine runs aarch64 programs."""

    def __init__(self) -> None:
        #: The program and its version; ``none`` on a machine that is aarch64 itself.
        self.name = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if platform.machine() == "aarch64":
            self.name = "none"
            return self
        with ExitStack() as made:
            if not (HANDLERS / "register").exists():
                run("mount", "-t", "binfmt_misc", "binfmt_misc", str(HANDLERS))
                made.callback(run, "umount", str(HANDLERS))
            program = interpreter(_handlers())
            if program is None:
                program = shutil.which(PROGRAM)
                if program is None:
                    raise NoNamespaces(f"there is no {PROGRAM} on this machine: {INSTALL}")
                _write(HANDLERS / "register", registration(program))
                made.callback(_write, HANDLERS / HANDLER, b"-1")
            self.name = version(run(program, "--version"))
            self._stack = made.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def interpreter(handlers: Mapping[str, str]) -> str | None:
    """The emulator that a handler starts for aarch64, by the text of each handler; None if no handler will do."""
    for _, text in sorted(handlers.items()):
        fields = dict(line.partition(" ")[::2] for line in text.splitlines())
        # F: the kernel holds the emulator open, so that it need not lie in the root folder as well.
        if "enabled" in fields and fields.get("magic") == _MAGIC.hex() and "F" in fields.get("flags:", ""):
            return fields.get("interpreter")
    return None


def registration(program: str) -> bytes:
    """What the kernel is told: which programs, by their first bytes, and which emulator."""
    return f":{HANDLER}:M::{_escaped(_MAGIC)}:{_escaped(_MASK)}:{program}:F".encode()


def version(told: str) -> str:
    """``qemu-aarch64 version 7.2.22 (Debian ...)`` in short."""
    found = re.search(r"(qemu\S*) version (\S+)", told)
    return f"{found[1]} {found[2]}" if found else told.partition("\n")[0].strip() or "unknown"


def _escaped(magic: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in magic)


def _handlers() -> dict[str, str]:
    files = [file for file in HANDLERS.iterdir() if file.name not in ("register", "status")]
    return {file.name: file.read_text() for file in files}


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        raise NoNamespaces(f"{file}: {error.strerror}: the kernel needs binfmt_misc, and this process root") from None
