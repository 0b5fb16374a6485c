"""The measured rows as a file: what was run when, on what machine. Knows no experiment."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from papers.eddl.rows import Row

FILE = Path(__file__).resolve().with_name("results.json")

#: Digits that are kept: more are noise, and make every run a change of the whole file.
_DIGITS = 5


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cores": os.cpu_count() or 1,
        "processor": platform.machine(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "torch": version("torch").partition("+")[0],
        "numpy": version("numpy"),
    }


def read() -> dict[str, Any]:
    """Everything; empty if nothing was measured yet."""
    plain: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {"experiments": {}}
    return plain


def rows_of(results: dict[str, Any], name: str) -> list[Row]:
    """Of one experiment; none if it was not run."""
    rows: list[Row] = results["experiments"].get(name, {}).get("rows", [])
    return rows


def write(measured: dict[str, tuple[list[Row], float]]) -> None:
    """Put the rows of these experiments, and the seconds each took, in the place of older ones."""
    results = read()
    today = datetime.now(UTC).date().isoformat()
    for name, (rows, seconds) in measured.items():
        kept = [{key: rounded(value) for key, value in row.items()} for row in rows]
        results["experiments"][name] = {"date": today, "seconds": round(seconds), "rows": kept}
    results["machine"] = machine()
    FILE.write_text(text_of(results))


def text_of(results: dict[str, Any]) -> str:
    """JSON with one line a row, so that a change shows which."""
    parts = []
    for name, told in sorted(results["experiments"].items()):
        rows = ",\n".join(f"    {json.dumps(row)}" for row in told["rows"])
        head = json.dumps({"date": told["date"], "seconds": told["seconds"]})[:-1]
        parts.append(f'  {json.dumps(name)}: {head}, "rows": [\n{rows}\n  ]}}')
    experiments = ",\n".join(parts)
    return f'{{"machine": {json.dumps(results["machine"])},\n "experiments": {{\n{experiments}\n}}}}\n'


def rounded(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
