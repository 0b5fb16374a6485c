"""The logs of a job that failed on a throw-away cluster, kept where a person finds them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shoal.runtime.paths import default_home
from shoal.wire.messages import EventView

#: Folders of older jobs go once there are more than this.
KEPT_MAX = 20


def keep_logs(home: Path, job: str, *, events: Sequence[EventView] = (), tracebacks: Sequence[EventView] = ()) -> Path:
    """Copy a local cluster's logs to ``~/.shoal/logs/JOB``, with what its manager recorded of the job."""
    try:
        folder = default_home() / "logs" / job
        folder.mkdir(parents=True, exist_ok=True)
        _drop_oldest(folder.parent)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix=f"shoal-{job}-"))
    for log in sorted(home.glob("*.log")):
        shutil.copy(log, folder / log.name)
    _write(folder / "events.txt", [f"{event.kind}: {event.reason}" for event in events])
    _write(folder / "tracebacks.txt", [f"{event.reason}\n{event.traceback}" for event in tracebacks])
    return folder


def _write(file: Path, texts: list[str]) -> None:
    if texts:
        file.write_text("\n".join(texts) + "\n", encoding="utf-8", errors="replace")


def _drop_oldest(parent: Path) -> None:
    folders = sorted((each for each in parent.iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime)
    for folder in folders[:-KEPT_MAX]:
        shutil.rmtree(folder, ignore_errors=True)
