"""Turns of the contenders: a turn waits for a quiet machine and is kept in a file. Does not depend on any peer."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.results import say

ROOT = Path(__file__).resolve().parents[2]
#: A turn counts as quiet if the load over the last minute is less than this when it begins.
QUIET_LOAD = 2.5
_LOOK_S = 5.0

Turn = dict[str, Any]


def wait_for_quiet(
    limit_s: float,
    *,
    load: Callable[[], float] = lambda: os.getloadavg()[0],
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Wait until the machine is quiet, at most so long. Return its load."""
    waited_s = 0.0
    now = load()
    while now >= QUIET_LOAD and waited_s < limit_s:
        if not waited_s:
            say(f"  load {now:.1f}: waiting up to {limit_s:g} s until it is below {QUIET_LOAD:g}")
        sleep(_LOOK_S)
        waited_s += _LOOK_S
        now = load()
    if now >= QUIET_LOAD:
        say(f"  load {now:.1f}: the turn begins all the same, and is not a quiet one")
    return now


def code() -> str:
    """Return a digest of the code that a turn measures, and of that which measures it."""
    digest = hashlib.sha256()
    folders = (ROOT / "src" / "shoal", ROOT / "benchmarks" / "peers")
    files = (path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".toml", ".yml"})
    for path in sorted(files):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class Turns:
    """Keep turns in a file, each under the code and the release that it measured. Turns of other code do not count."""

    def __init__(self, file: Path | None) -> None:
        """``file``: None keeps nothing."""
        self._file = file
        self._turns: list[Turn] = json.loads(file.read_text()) if file is not None and file.exists() else []
        self._code = code()

    def of(self, name: str, version: str | None) -> list[Turn]:
        key = self._key(name, version)
        return [turn for turn in self._turns if turn["key"] == key]

    def keep(self, name: str, version: str | None, *, load: float, figures: dict[str, object]) -> None:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        key = self._key(name, version)
        self._turns.append({"peer": name, "key": key, "at": at, "load": round(load, 2), "figures": figures})
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.with_suffix(".part")
            part.write_text(json.dumps(self._turns, indent=1))
            part.rename(self._file)

    def _key(self, name: str, version: str | None) -> str:
        return hashlib.sha256(f"{self._code} {name} {version}".encode()).hexdigest()[:16]


def is_done(turn: Turn) -> bool:
    """A turn that failed is kept, told, and taken again."""
    return "error" not in turn["figures"]
