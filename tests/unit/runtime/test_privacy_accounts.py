"""Accounts of several private jobs on one device: they add up, and nothing leaves beyond the owner's limit."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Misuse, ShoalError
from shoal.learning.privacy import Privacy
from shoal.runtime.privacy_accounts import PRIVACY_FOLDER, accounts, limit_of, remember_limit, spent_elsewhere
from shoal.runtime.privacy_ledger import PrivacyLedger

#: A participation in one of these spends 2.6, the four of the plan together 6.
PROMISED = Privacy(epsilon=6.0, delta=1e-5, clip=0.5, devices=20, participations=4, apart=1, versions=4)

JOBS = ("job-1", "job-2", "job-3")


@given(st.lists(st.sampled_from(JOBS), max_size=9), st.floats(0.5, 20))
def test_all_jobs_together_stay_within_the_limit(came: list[str], limit: float) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        remember_limit(folder, limit)
        for version, job in enumerate(came):
            ledger = PrivacyLedger(folder, job, PROMISED)
            left, before = ledger.epsilon_left(), accounts(folder)
            try:
                ledger.note(1, version)
            except ShoalError:
                assert accounts(folder) == before
            else:
                assert left > 0
            assert sum(account.epsilon for account in accounts(folder)) <= limit
            assert left == pytest.approx(limit - spent_elsewhere(folder, job))


def test_a_device_without_a_limit_keeps_its_accounts_all_the_same(tmp_path: Path) -> None:
    for job in JOBS:
        ledger = PrivacyLedger(tmp_path, job, PROMISED)
        for version in range(4):
            ledger.note(1, version)
        assert ledger.epsilon_left() == math.inf
    found = accounts(tmp_path)
    assert [(account.job, account.participations, account.delta) for account in found] == [
        (job, 4, 1e-5) for job in JOBS
    ]
    assert [account.epsilon for account in found] == pytest.approx([6.0] * 3, rel=1e-3)
    assert spent_elsewhere(tmp_path, "job-2") == pytest.approx(12.0, rel=1e-3)


def test_the_limit_is_remembered_and_an_unreadable_one_stops_the_device(tmp_path: Path) -> None:
    assert limit_of(tmp_path) == math.inf
    remember_limit(tmp_path, 8)
    assert limit_of(tmp_path) == 8.0
    (file,) = (tmp_path / PRIVACY_FOLDER).iterdir()
    for text in ("", "[]", "{}", '{"epsilon": "much"}', '{"epsilon": -1}', '{"epsilon": NaN}', " " * (1 << 21)):
        file.write_text(text)
        with pytest.raises(ShoalError, match=r"cannot be read.*takes no part"):
            limit_of(tmp_path)
    assert accounts(tmp_path) == []


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_a_limit_is_a_number_above_zero(tmp_path: Path, epsilon: float) -> None:
    with pytest.raises(Misuse, match="--max-epsilon"):
        remember_limit(tmp_path, epsilon)


def test_an_account_that_says_nothing_of_epsilon_is_not_taken_for_zero(tmp_path: Path) -> None:
    PrivacyLedger(tmp_path, "job-1", PROMISED).note(1, 1)
    (tmp_path / PRIVACY_FOLDER / "job-2.json").write_text('{"job": "job-2", "participations": [[1, 2]]}')
    with pytest.raises(ShoalError, match=r"job-2\.json.*cannot be added"):
        accounts(tmp_path)
    # Without a limit nobody has to add them up.
    PrivacyLedger(tmp_path, "job-1", PROMISED).note(1, 2)
    remember_limit(tmp_path, 100)
    with pytest.raises(ShoalError, match="cannot be added"):
        PrivacyLedger(tmp_path, "job-1", PROMISED).note(1, 3)
