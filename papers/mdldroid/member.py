"""A device as a process of its own: it trains (waits), sends, merges, and tells its peak memory. Knows no schedule.

python -m papers.mdldroid.member --host 127.0.0.1 --values 1000 --own 3.0 --theta 2

Orders come one a line on standard input, answers go one a line to standard output. Models pass between members over
TCP, as float32 with a header of θ and the number of values. Numpy and the standard library alone, so that a process is
little more than its models.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

_HEADER = struct.Struct("!dQ")
#: A merge holds so much of the other's model at a time.
CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 120.0


class Member:
    def __init__(self, listener: socket.socket, *, values: int, own: float, theta: float) -> None:
        self._listener = listener
        self._own = own
        self._own_theta = theta
        self.held = np.zeros(values, dtype=np.float32)
        self.theta = theta

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        match order["do"]:
            case "train":
                time.sleep(order["seconds"])
                self.held[:] = self._own
                self.theta = self._own_theta
            case "send":
                self.send(order["to"])
            case "give":
                for to in order["to"]:
                    self.send(to)
            case "get":
                self.get(whole=order.get("whole", False))
            case "take":
                self.take()
            case "collect":
                self.collect(order["count"], hold=order["hold"])
            case "report":
                return {"peak_mb": peak_mb(), "mean": float(self.held.mean(dtype=np.float64)), "theta": self.theta}
            case unknown:
                raise ValueError(f"no order {unknown!r}")
        return {"did": order["do"]}

    def send(self, to: list[Any]) -> None:
        with socket.create_connection((to[0], int(to[1])), timeout=_TIMEOUT_S) as line:
            line.sendall(_HEADER.pack(self.theta, self.held.size))
            whole = self.held.data.cast("B")
            for start in range(0, len(whole), CHUNK_BYTES):
                line.sendall(whole[start : start + CHUNK_BYTES])
            # Nothing comes back but the end: a merge is over when the receiver has all.
            line.recv(1)

    def get(self, *, whole: bool) -> None:
        """Merge what one sender has (Eq. 3): piece by piece, or with all of it in memory, as the paper's O(2)."""
        with self._accepted() as line:
            theta = self._header(line)
            total = self.theta + theta
            mine, theirs = np.float32(self.theta / total), np.float32(theta / total)
            chunk = np.empty(self.held.size if whole else min(self.held.size, CHUNK_BYTES // 4), dtype=np.float32)
            for start in range(0, self.held.size, chunk.size):
                part = self.held[start : start + chunk.size]
                piece = chunk[: part.size]
                _fill(line, piece)
                piece *= theirs
                part *= mine
                part += piece
            self.theta = total

    def take(self) -> None:
        """The finished model, in the place of one's own."""
        with self._accepted() as line:
            self.theta = self._header(line)
            _fill(line, self.held)

    def collect(self, count: int, *, hold: bool) -> None:
        """A master: all updates first and then their mean, or one sum into which each goes as it comes."""
        kept: list[tuple[np.ndarray, float]] = []
        for _ in range(count):
            if not hold:
                self.get(whole=False)
                continue
            with self._accepted() as line:
                theta = self._header(line)
                update = np.empty(self.held.size, dtype=np.float32)
                _fill(line, update)
                kept.append((update, theta))
        total = self.theta + sum(theta for _, theta in kept)
        self.held *= np.float32(self.theta / total)
        for update, theta in kept:
            update *= np.float32(theta / total)
            self.held += update
        self.theta = total

    def _accepted(self) -> socket.socket:
        line, _ = self._listener.accept()
        line.settimeout(_TIMEOUT_S)
        return line

    def _header(self, line: socket.socket) -> float:
        theta, values = _HEADER.unpack(_read(line, _HEADER.size))
        if values != self.held.size:
            raise ValueError(f"{values} values for a model of {self.held.size}")
        return float(theta)


def _read(line: socket.socket, count: int) -> bytes:
    out = bytearray(count)
    _into(line, memoryview(out))
    return bytes(out)


def _fill(line: socket.socket, array: np.ndarray) -> None:
    _into(line, array.data.cast("B"))


def _into(line: socket.socket, view: memoryview) -> None:
    while view:
        got = line.recv_into(view)
        if not got:
            raise ConnectionError("the sender is gone")
        view = view[got:]


def peak_mb() -> float:
    """The most that this process ever had resident."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("no VmHWM: this takes Linux")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--values", type=int, required=True)
    parser.add_argument("--own", type=float, default=1.0)
    parser.add_argument("--theta", type=float, default=1.0)
    given = parser.parse_args()
    with socket.create_server((given.host, 0), backlog=64) as listener:
        listener.settimeout(_TIMEOUT_S)
        member = Member(listener, values=given.values, own=given.own, theta=given.theta)
        print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
        for line in sys.stdin:
            print(json.dumps(member.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
