"""The same seed gives the same trace, to the byte, whatever the process and its hash seed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dst.case import case
from dst.fuzz import CheckedRun
from shoal.errors import Corrupt
from shoal.sim.trace import TraceWriter, difference, read_header

ROOT = Path(__file__).resolve().parents[2]


def trace_of(seed: int, profile: str = "plain") -> str:
    file = io.StringIO()
    CheckedRun(case(profile, seed), observers=[TraceWriter(file, {"profile": profile, "seed": seed})]).run()
    return file.getvalue()


def trace_in_process(profile: str, seed: int, path: Path, *, hash_seed: str) -> bytes:
    command = [sys.executable, "-m", "benchmarks.protocol_seeds", "--profile", profile]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    subprocess.run(
        [*command, "--first", str(seed), "--count", "1", "--trace", str(path)],
        env=environment,
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return path.read_bytes()


# In the last a manager takes over a job of another.
@pytest.mark.parametrize(
    ("profile", "seed"),
    [
        ("plain", 6),
        pytest.param("any", 130, marks=pytest.mark.full),
        pytest.param("managers", 60_002, marks=pytest.mark.full),
    ],
)
def test_a_seed_is_one_trace(profile: str, seed: int, tmp_path: Path) -> None:
    here = trace_of(seed, profile)
    assert here == trace_of(seed, profile)
    assert len(here.splitlines()) > 200
    for hash_seed in ("0", "1", "4711"):
        assert trace_in_process(profile, seed, tmp_path / "trace.jsonl", hash_seed=hash_seed) == here.encode()


def test_what_is_coded_can_be_traced() -> None:
    assert '"changes":[{"is":"Sparse"' in trace_of(3)


def test_another_seed_is_another_trace() -> None:
    assert trace_of(3) != trace_of(4)


def test_where_two_traces_part() -> None:
    lines = trace_of(3).splitlines(keepends=True)
    assert difference(lines, lines) is None
    changed = [*lines[:7], lines[7].replace('"at_s"', '"at"'), *lines[8:]]
    found = difference(lines, changed)
    assert found is not None
    assert (found.line, found.first, found.second) == (8, lines[7], changed[7])
    ended = difference(lines, lines[:9])
    assert ended is not None
    assert (ended.line, ended.second) == (10, None)


def test_a_trace_knows_what_it_is_of() -> None:
    assert read_header(io.StringIO(trace_of(3)))["seed"] == 3
    with pytest.raises(Corrupt, match="not a trace"):
        read_header(io.StringIO('{"a": 1}\n'))
