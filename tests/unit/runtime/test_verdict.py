"""A device has another process check who signed a job: the verdict is the same, and none means no job."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import PeerViolation, ShoalError
from shoal.identity.cards import CardKey
from shoal.identity.identity import Authority
from shoal.identity.signatures import Checker, SignaturesAsked, SignaturesFound
from shoal.identity.signing import check_on_device, sign
from shoal.runtime import verdict
from shoal.runtime.verdict import checked_apart, verdict_apart
from shoal.wire.messages import JobSpec
from tests.unit.identity.test_signing import NOW_S, SPEC

pytestmark = pytest.mark.timeout(120)


def test_another_process_says_who_signed_a_job_and_what_was_changed(tmp_path: Path) -> None:
    ann = Authority.create(tmp_path / "pond", "pond", now_s=NOW_S).identity(node="ann", role="operator", now_s=NOW_S)
    bob = Authority.create(tmp_path / "sea", "pond", now_s=NOW_S).identity(node="bob", role="operator", now_s=NOW_S)
    key = CardKey.new()
    signed = sign(SPEC, ann, key)

    def checked(spec: JobSpec, pinned: bytes = b"") -> str:
        return check_on_device(spec, ca_pem=ann.ca_pem, cluster="pond", pinned=pinned, find=verdict_apart)

    assert checked(signed) == checked(signed, key.public) == "ann"
    with pytest.raises(PeerViolation, match="not what ann signed"):
        checked(replace(signed, name="other"))
    with pytest.raises(PeerViolation, match="signer is not known"):
        checked(sign(SPEC, bob))
    with pytest.raises(PeerViolation, match="operator's key that this device pinned"):
        checked(signed, CardKey.new().public)


QUESTION = SignaturesAsked(content=b"\xff", signature=b"s", certificate_der=b"c", root_der=b"r", now_s=1.5, pinned=b"p")


def test_a_question_and_a_verdict_are_what_they_were_in_json() -> None:
    assert SignaturesAsked.from_json(QUESTION.to_json()) == QUESTION
    refused = SignaturesFound(refusal="no member")
    assert SignaturesFound.from_json(refused.to_json().encode()) == refused


@pytest.mark.parametrize(
    "program",
    ["print('true')", "print('{}')", "raise SystemExit(3)", "raise MemoryError", "print('not json')"],
)
def test_no_verdict_means_no_job(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "command", lambda _: [sys.executable, "-c", program])
    with pytest.raises(ShoalError, match="signature could not be checked"):
        verdict_apart(QUESTION)


def test_lines_that_this_python_prints_at_its_start_are_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('{}')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "cannot be read" in verdict_apart(QUESTION).refusal


def test_why_there_is_no_verdict_names_no_files_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "CHECK_TIMEOUT_S", 0.2)
    for words in ([sys.executable, "-c", "import time; time.sleep(60)"], [str(tmp_path / "python")]):
        monkeypatch.setattr(verdict, "command", lambda _, words=words: words)
        with pytest.raises(ShoalError, match=r"could not be checked: [Nn]o ") as caught:
            verdict_apart(QUESTION)
        assert "/" not in str(caught.value)


def test_jobs_that_are_prepared_together_are_checked_one_at_a_time() -> None:
    alone, most = threading.Semaphore(1), []

    def check(find: Checker) -> str:
        assert find is verdict_apart
        most.append(alone.acquire(blocking=False))
        time.sleep(0.02)
        alone.release()
        return "ann"

    async def prepare() -> list[str]:
        return await asyncio.gather(*(checked_apart(check) for _ in range(5)))

    assert asyncio.run(prepare()) == ["ann"] * 5
    assert most == [True] * 5
