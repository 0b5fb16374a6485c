"""Writes ``tab/src/blt_table.ts``: the decays and weights of buffered noise, by which a tab counts its privacy."""

from __future__ import annotations

import json
from pathlib import Path

from shoal.learning.blt_table import TABLE

TARGET = Path(__file__).parents[1] / "tab" / "src" / "blt_table.ts"


def text() -> str:
    """The file's content."""
    rows = [
        f"  {size}: {{ decays: {json.dumps(row.decays)}, weights: {json.dumps(row.weights)} }},"
        for size, row in TABLE.items()
    ]
    head = "// Decays and weights of buffered noise, by versions. Written by `python tools/tasks.py tab`; do not edit."
    kind = "export const TABLE: Record<number, { decays: number[]; weights: number[] }> = {"
    return "\n".join([head, "", kind, *rows, "};", ""])


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
