"""Which seeds were played at which code, so that a run that was stopped goes on where it was.

A note counts only for the same code: it is filed under a digest of everything that decides how a seed ends.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".seeds"


def code_digest() -> str:
    """A digest of the simulator, the roles and the oracles."""
    digest = hashlib.sha256()
    for folder in ("src/shoal", "dst"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@dataclass(slots=True)
class SeedNotes:
    path: Path
    played: set[tuple[str, int]] = field(default_factory=set)
    #: ``profile seed`` -> what went wrong.
    wrong: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls) -> SeedNotes:
        """Read what is noted for the present code."""
        notes = cls(FOLDER / f"{code_digest()[:16]}.jsonl")
        if notes.path.exists():
            for line in notes.path.read_text(encoding="utf-8").splitlines():
                noted = json.loads(line)
                notes.played.update((profile, seed) for profile, seed in noted["played"])
                notes.wrong |= noted["wrong"]
        return notes

    def add(self, seeds: list[tuple[str, int]], wrong: dict[str, str]) -> None:
        """Note seeds that were played. One line each time: what is killed halfway is played again."""
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"played": seeds, "wrong": wrong}) + "\n")
        self.played.update(seeds)
        self.wrong |= wrong
