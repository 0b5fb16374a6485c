"""Removes files from a device's disk that an agent without PyTorch never opens, and tries training without them.

    python -m shoal.trainer.portable.trim          # lists what can be removed
    python -m shoal.trainer.portable.trim --yes    # removes it, and restores all if an agent then cannot train

Touches only files that pip wrote for Shoal, onnxruntime and what they need. The next update by pip restores them.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

import numpy as np

_TRIAL_S = 600.0
_STEPS = 50
#: Commands to try: an agent and its command line load, and a graph trains.
TRIALS = (
    (sys.executable, "-c", "import shoal.cli.main, shoal.runtime.agent"),
    (sys.executable, "-m", "shoal.trainer.portable.trim", "--trial"),
)
#: One step of training: of a line through points, by its gradient. ``tests/unit/trainer/test_trim.py`` builds it.
TRIAL_GRAPH = base64.b64decode(
    "CAk6rAMKIAoIY29sdW1uLngKBnZlY3RvchIEc2VlbiIGTWF0TXVsChoKBHNlZW4KCGNvbHVtbi55EgNvZmYiA1N1YgosCghjb2x1bW4ueBIGdH"
    "VybmVkIglUcmFuc3Bvc2UqDQoEcGVybUABQACgAQcKHwoGdHVybmVkCgNvZmYSCGdyYWRpZW50IgZNYXRNdWwKHQoIZ3JhZGllbnQKBHJhdGUS"
    "BmNoYW5nZSIDTXVsCiIKBnZlY3RvcgoGY2hhbmdlEgt2ZWN0b3JfbmV4dCIDU3ViChgKA29mZgoDb2ZmEgdzcXVhcmVzIgNNdWwKKwoHc3F1YX"
    "JlcxIEbG9zcyIJUmVkdWNlU3VtKg8KCGtlZXBkaW1zGACgAQISBHN0ZXBaFAoGdmVjdG9yEgoKCAgBEgQKAggCWg4KBHJhdGUSBgoECAESAFof"
    "Cghjb2x1bW4ueBITChEIARINCgcSBWJhdGNoCgIIAlobCghjb2x1bW4ueRIPCg0IARIJCgcSBWJhdGNoYhkKC3ZlY3Rvcl9uZXh0EgoKCAgBEg"
    "QKAggCYg4KBGxvc3MSBgoECAESAEIECgAQEg=="
)


def is_unused(place: PurePath) -> bool:
    """Whether a file is not needed: a package's tests, bytecode, which Python can write again, and onnxruntime's C
    library, which its Python module contains a second time."""
    is_test = "tests" in place.parts[:-1]
    return is_test or place.suffix == ".pyc" or place.name.startswith("libonnxruntime.so")


def files_of(*names: str) -> Iterator[tuple[Path, PurePath]]:
    """Yield the files that pip wrote for these packages and all that they need, and their paths in site-packages."""
    # Imported here: it comes with onnxruntime, which an agent with PyTorch may not have.
    from packaging.requirements import Requirement

    wanted, found = list(names), set[str]()
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        found.add(name)
        package = importlib.metadata.distribution(name)
        for file in package.files or ():
            path = Path(str(file.locate()))
            if path.is_file() and ".." not in file.parts:
                yield path, PurePath(*file.parts)
        for text in package.requires or ():
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                wanted.append(need.name.lower().replace("_", "-"))


def trim(unused: Sequence[Path]) -> bool:
    """Remove these files. Return whether an agent can train without them; if not, all are restored."""
    root = Path(os.path.commonpath([path.parent for path in unused]))
    is_fine = False
    # On the same disk, so that a move is only a rename: a device that is short of disk has no room for a copy.
    with tempfile.TemporaryDirectory(prefix=".shoal-trim-", dir=root) as folder:
        moved: list[tuple[Path, Path]] = []
        try:
            for number, path in enumerate(unused):
                moved.append((path, path.rename(Path(folder) / str(number))))
            is_fine = all(subprocess.run(command, timeout=_TRIAL_S, check=False).returncode == 0 for command in TRIALS)
        finally:
            if not is_fine:
                for path, aside in moved:
                    aside.rename(path)
    for emptied in sorted({path.parent for path in unused}, reverse=True):
        with contextlib.suppress(OSError):
            emptied.rmdir()
    return is_fine


def trial() -> None:
    """Train, as a device without PyTorch does."""
    from shoal.trainer.portable.graph import check_graph
    from shoal.trainer.portable.run import GraphRun, StepRun

    check_graph(TRIAL_GRAPH)
    steps = StepRun(GraphRun(TRIAL_GRAPH, threads=1), 0)
    steps.begin(2)
    true = np.array([2.0, -1.0], np.float32)
    x = np.array([[0, 1], [1, 1], [2, 1], [3, 1]], np.float32)
    vector, loss = np.zeros(2, np.float32), np.inf
    for _ in range(_STEPS):
        vector, loss = steps.step(vector, {"x": x, "y": x @ true}, rate=0.1, weight_decay=0.0, draws={})
    if not loss < 0.1:
        raise SystemExit(f"a line was not learnt: its loss is {loss:g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yes", action="store_true", help="remove it")
    parser.add_argument("--trial", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trial:
        trial()
        return
    sizes = {path: path.stat().st_size for path, place in files_of("shoal", "onnxruntime") if is_unused(place)}
    told = f"{sum(sizes.values()) / 1e6:.0f} MB in {len(sizes):,} files"
    if not sizes:
        print("nothing is left to remove")
    elif not given.yes:
        print(f"{told} can go: tests, bytecode and a library for programs in C; --yes removes them")
    elif trim(list(sizes)):
        print(f"removed {told}; an agent trains without them")
    else:
        raise SystemExit(f"an agent does not train without these {told}: all of them are back")


if __name__ == "__main__":
    main()
