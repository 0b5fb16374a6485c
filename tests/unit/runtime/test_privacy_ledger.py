"""The file of a device's participations: it only grows, and a device that cannot read it takes no part."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ShoalError
from shoal.learning.privacy import PARTICIPATIONS_MAX, Privacy
from shoal.runtime.privacy_accounts import PRIVACY_FOLDER
from shoal.runtime.privacy_ledger import PrivacyLedger

PROMISED = Privacy(
    epsilon=8.0,
    delta=1e-5,
    clip=0.5,
    devices=20,
    participations=PARTICIPATIONS_MAX,
    apart=1,
    versions=PARTICIPATIONS_MAX,
)
PAIRS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=20)


@given(PAIRS, st.lists(st.booleans(), min_size=20, max_size=20))
def test_what_was_noted_is_there_for_every_process_after(pairs: list[tuple[int, int]], restarts: list[bool]) -> None:
    with TemporaryDirectory() as folder:
        ledger = PrivacyLedger(Path(folder), "job-1", PROMISED)
        for at, (term, version) in enumerate(pairs):
            ledger.note(term, version)
            if restarts[at]:
                ledger = PrivacyLedger(Path(folder), "job-1", PROMISED)
            assert ledger.taken == tuple(pairs[: at + 1])
        assert PrivacyLedger(Path(folder), "job-2", PROMISED).taken == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"job": "job-1"}',
        '{"job": "job-2", "participations": []}',
        '{"job": "job-1", "participations": [[1]]}',
        '{"job": "job-1", "participations": [[1, -2]]}',
        '{"job": "job-1", "participations": [[1, true]]}',
        '{"job": "job-1", "participations": [[1, 2.5]]}',
        '{"job": "job-1", "participations": 7}',
        " " * 300_000,
    ],
)
def test_an_account_that_cannot_be_read_stops_the_device(tmp_path: Path, text: str) -> None:
    (tmp_path / PRIVACY_FOLDER).mkdir()
    (tmp_path / PRIVACY_FOLDER / "job-1.json").write_text(text)
    with pytest.raises(ShoalError, match=r"cannot be read.*takes no part"):
        PrivacyLedger(tmp_path, "job-1", PROMISED)


def test_what_cannot_be_written_is_not_taken_for_written(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path, "job-1", PROMISED)
    ledger.note(1, 2)
    (tmp_path / PRIVACY_FOLDER).rename(tmp_path / "elsewhere")
    (tmp_path / PRIVACY_FOLDER).write_text("a file in its way")
    with pytest.raises((ShoalError, OSError)):
        ledger.note(1, 3)
    assert ledger.taken == ((1, 2),)


def test_a_job_cannot_name_another_file(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="not a job's id"):
        PrivacyLedger(tmp_path, "../../etc/passwd", PROMISED)


NOTES = """
import sys
from pathlib import Path
from shoal.learning.privacy import Privacy
from shoal.runtime.privacy_ledger import PrivacyLedger

numbers = {"participations": 4096, "apart": 1, "versions": 4096}
promised = Privacy(epsilon=8.0, delta=1e-5, clip=0.5, devices=20, **numbers)
ledger = PrivacyLedger(Path(sys.argv[1]), "job-1", promised)
for version in range(10_000):
    ledger.note(1, version)
    print(version, flush=True)
"""


@pytest.mark.timeout(120)
def test_kill_minus_nine_takes_nothing_back(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", NOTES, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(25):
            said = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    taken = PrivacyLedger(tmp_path, "job-1", PROMISED).taken
    # What was said to be durable is there; more may be, up to the one that was being written.
    assert len(taken) > said
    assert [version for _, version in taken] == list(range(len(taken)))
    assert json.loads((tmp_path / PRIVACY_FOLDER / "job-1.json").read_text())["job"] == "job-1"
