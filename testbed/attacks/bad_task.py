"""A task whose code attacks the device it trains on: one deed for each name. Tells what came of it as its own failure.

It is signed like any other: an operator was deceived, or is the attacker. Knows nothing of Shoal's insides.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import mmap
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

import shoal

#: How a report is found among a job's events.
MARK = "REPORT"

_CLONE_NEWNET = 0x40000000
_MAP_PRIVATE_FIXED_ANONYMOUS = 0x02 | 0x10 | 0x20
_PAGE = mmap.PAGESIZE


class Bad(shoal.Task):
    def __init__(self, deed: str = "", **_: Any) -> None:
        self.deed = deed
        self.given = _
        self.done = False

    def model(self) -> nn.Module:
        return nn.Linear(4, 3)

    def examples(self, split: str) -> Any:
        count = 64 if split == "train" else 0
        chance = np.random.default_rng(int(self.given.get("seed", 0)))
        return chance.normal(size=(count, 4)).astype(np.float32), np.arange(count) % 3

    def loss(self, output: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        if self.deed and not self.done:
            self.done = True
            report = getattr(self, f"_{self.deed}")()
            if report is not None:
                raise RuntimeError(f"{MARK} {json.dumps(report)}")
        return nn.functional.cross_entropy(output, y)

    # 4 ---------------------------------------------------------------------------------------------------------

    def _shrink(self) -> None:
        """Cut off the memory that is shared with the agent, and go on as if nothing were: in a copy of our own."""
        with open("/proc/self/maps") as maps:
            lines = maps.read().splitlines()
        for line in lines:
            if "memfd:" in line or ("(deleted)" in line and " rw-s " in line):
                start, stop = (int(part, 16) for part in line.split()[0].split("-"))
                _replace_mapping(start, stop - start)
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/self/fd/{number}")
                if "memfd:" in link or link.endswith("(deleted)"):
                    os.ftruncate(number, 0)
                    print("the shared memory is gone", flush=True)

    # 5 ---------------------------------------------------------------------------------------------------------

    def _rise(self) -> dict[str, str]:
        """Read keys, get back the network, take the processor, reach into the agent."""
        agent = os.getppid()
        return {
            "read the key": _tried(lambda: f"{len(open(str(self.given['key'])).read())} bytes"),
            "read the agent's memory": _tried(lambda: _read_memory(agent)),
            "signal the agent": _tried(lambda: os.kill(agent, 0)),
            "connect before": _tried(self._connect),
            "regain the network": _tried(lambda: _setns(agent)),
            "connect after": _tried(self._connect),
            "SCHED_FIFO": _tried(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))),
            "write beside the key": _tried(lambda: open(f"{self.given['key']}.mine", "w").close()),
            "become root again": _tried(_be_root),
        }

    def _connect(self) -> None:
        socket.create_connection(("127.0.0.1", int(self.given["port"])), 3).close()

    # 6 ---------------------------------------------------------------------------------------------------------

    def _hoard(self) -> dict[str, str]:
        """Take more memory than was allowed, in one of the ways there are. In a child: who is killed tells no tales."""
        size = int(self.given["mb"]) << 20
        ways: dict[str, Callable[[], str]] = {
            "shared anonymous memory": lambda: _fill(mmap.mmap(-1, size)),
            "memfds": lambda: _fill_memfds(size),
            "files in /dev/shm": lambda: _fill_shm(size),
        }
        return {self.given["way"]: _in_child(ways[str(self.given["way"])])}

    # 13 --------------------------------------------------------------------------------------------------------

    def _pry(self) -> dict[str, Any]:
        """Read what other jobs left on this device."""
        secret = bytes.fromhex(str(self.given["secret"]))
        found: list[str] = []
        seen = 0
        for path in glob.glob(f"{self.given['home']}/**", recursive=True):
            if os.path.isfile(path):
                with contextlib.suppress(OSError), open(path, "rb") as file:
                    seen += 1
                    if secret in file.read():
                        found.append(os.path.basename(path)[:16])
        for path in glob.glob("/proc/[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                if not path.startswith(f"/proc/{os.getpid()}/") and os.path.isfile(path):
                    with open(path, "rb") as file:
                        seen += 1
                        if secret in file.read(1 << 24):
                            found.append(path)
        return {"user": os.getuid(), "readable": seen, "found": found[:5]}


def _tried(deed: Callable[[], object]) -> str:
    try:
        done = deed()
    except Exception as error:
        return f"no: {type(error).__name__} {str(error)[:60]}"
    return f"YES {done if done is not None else ''}".strip()


def _replace_mapping(start: int, size: int) -> None:
    """Put private memory with the same content at the same place."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    content = ctypes.string_at(start, size)
    flags = mmap.PROT_READ | mmap.PROT_WRITE
    library.mmap(start, size, flags, _MAP_PRIVATE_FIXED_ANONYMOUS, -1, 0)
    ctypes.memmove(start, content, size)


def _read_memory(pid: int) -> str:
    with open(f"/proc/{pid}/maps") as maps:
        start = int(next(line for line in maps if " rw-p " in line).split("-")[0], 16)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(start)
        return f"{len(memory.read(4096))} bytes"


def _setns(pid: int) -> None:
    with open(f"/proc/{pid}/ns/net") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _be_root() -> str:
    os.setuid(0)
    with open("/proc/self/status") as status:
        effective = next(line for line in status if line.startswith("CapEff")).split()[1]
    if int(effective, 16) == 0:
        raise OSError("a root without any capability")
    return f"capabilities {effective}"


def _in_child(deed: Callable[[], object]) -> str:
    """What came of it in a process of its own: said, refused, or killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.write(writing, _tried(deed).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return said or f"no: killed by signal {os.WTERMSIG(status)}"


def _fill(memory: mmap.mmap) -> str:
    for at in range(0, len(memory), _PAGE):
        memory[at] = 1
    return f"{len(memory) >> 20} MB"


def _fill_memfds(size: int) -> str:
    held = 0
    for _ in range(4):
        number = os.memfd_create("hoard")
        for _ in range(size >> 22):
            held += os.write(number, bytes(1 << 20))
    return f"{held >> 20} MB"


def _fill_shm(size: int) -> str:
    path = f"/dev/shm/shoal-attack-{os.getpid()}"  # noqa: S108
    held = 0
    with open(path, "wb", buffering=0) as file:
        for _ in range(size >> 20):
            held += file.write(bytes(1 << 20))
    time.sleep(0)
    return f"{held >> 20} MB in {path}"
