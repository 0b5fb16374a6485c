"""Which seeds were played at which code, so that a run that was stopped goes on where it was.

A note counts only for the same code: it is filed under a digest of everything that decides how a seed ends.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".seeds"


#: What may decide how a seed ends: code, the wire contract, tables.
_SUFFIXES = (".py", ".binpb", ".json")


def code_digest() -> str:
    """A digest of the simulator, the roles and the oracles, and of what they run on."""
    digest = hashlib.sha256(f"{sys.version} {np.__version__}".encode())
    files = (path for folder in ("src/shoal", "dst", "benchmarks") for path in (ROOT / folder).rglob("*"))
    for path in sorted(path for path in files if path.suffix in _SUFFIXES):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@dataclass(slots=True)
class SeedNotes:
    path: Path
    #: The digest that the notes are filed under.
    code: str
    played: set[tuple[str, int]] = field(default_factory=set)
    #: ``profile seed`` -> what went wrong.
    wrong: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls) -> SeedNotes:
        """Read what is noted for the present code."""
        code = code_digest()
        notes = cls(FOLDER / f"{code[:16]}.jsonl", code)
        if notes.path.exists():
            for line in filter(None, notes.path.read_text(encoding="utf-8").splitlines()):
                try:
                    noted = json.loads(line)
                except ValueError:
                    # Written in part: what it named is played again.
                    continue
                notes.played.update((profile, seed) for profile, seed in noted["played"])
                notes.wrong |= noted["wrong"]
        return notes

    def add(self, seeds: list[tuple[str, int]], wrong: dict[str, str]) -> None:
        """Note seeds that were played. One line each time: what is killed halfway is played again."""
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            # A line that was written in part must not spoil this one.
            file.write("\n" + json.dumps({"played": seeds, "wrong": wrong}) + "\n")
        self.played.update(seeds)
        self.wrong |= wrong
