"""A job is queued if all that it names is there and its signer may submit; the same submission again is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.errors import PeerViolation, Refused
from shoal.identity.identity import Authority
from shoal.plan import Plan
from shoal.roles.actions import Answer
from shoal.roles.events import Asked
from shoal.runtime import submissions
from shoal.runtime.contents import Contents
from shoal.runtime.disk_quota import DiskQuota
from shoal.runtime.ended_jobs import EndedJobs
from shoal.runtime.job_files import JobFiles
from shoal.runtime.member_register import MemberRegister
from shoal.runtime.paths import Paths
from shoal.runtime.questions import Questions
from shoal.runtime.submissions import Submissions
from shoal.store.depot import FolderDepot
from shoal.store.registry import Registry
from shoal.wire.messages import Dataset, Denied, Done, JobSpec, Message, Submit

pytestmark = pytest.mark.timeout(60)


class Ended:
    """Jobs that are in the store already, with the answer that each gets."""

    def __init__(self) -> None:
        self.known: dict[str, Message] = {}

    def why_not_new(self, spec: JobSpec) -> Message | None:
        return self.known.get(spec.job)


class Quota:
    def __init__(self) -> None:
        self.wanted: list[Mapping[str, int]] = []

    async def measure(self, *, wanted: Mapping[str, int]) -> int:
        self.wanted.append(wanted)
        return 0


class Desk:
    def __init__(self, folder: Path) -> None:
        authority = Authority.create(folder / "authority", "pond")
        self.signer = authority.identity(node="ann", role="operator")
        self.registry = Registry(folder / "registry.db")
        self.register = MemberRegister(self.registry)
        self.register.reserve("ann", "operator", now_s=1.0)
        depot = FolderDepot(folder)
        self.blobs = depot.blobs
        self.ended, self.quota = Ended(), Quota()
        self.books = asyncio.Lock()
        self.posted: list[tuple[str, str, bool]] = []
        self.questions = Questions(self._post)
        self.submissions = Submissions(
            authority.identity(node="manager", role="manager"),
            self.register,
            self.blobs,
            contents=Contents(self.blobs),
            files=JobFiles(Paths(folder), self.registry, depot),
            ended=cast(EndedJobs, self.ended),
            quota=cast(DiskQuota, self.quota),
            books=self.books,
            questions=self.questions,
        )

    def _post(self, asked: Asked) -> None:
        assert isinstance(asked.message, Submit)
        self.posted.append((asked.message.spec.job, asked.by, self.books.locked()))
        answer = Answer(question=asked.question, message=Done(reason="queued"))
        asyncio.get_running_loop().call_soon(self.questions.on_answer, answer)

    def spec(self, **other: Any) -> JobSpec:
        sha256 = self.blobs.put(b"whatever it is made of")
        none = Dataset(manifest=sha256, examples=1)
        named: dict[str, Any] = {"bundle": sha256, "initial": sha256} | other
        pem = self.signer.certificate_pem.decode()
        return JobSpec(job="j", name="j", entry="t:T", train=none, test=none, plan=Plan(), signer_pem=pem, **named)

    def takes(self, spec: JobSpec) -> Message:
        return asyncio.run(self.submissions.take(Submit(spec=spec), by="ann"))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(submissions, "check", lambda spec, **_: "ann")
    return Desk(tmp_path)


def test_a_job_is_queued_while_nothing_that_it_names_may_go(desk: Desk) -> None:
    spec = desk.spec()
    assert desk.takes(spec) == Done(reason="queued")
    assert desk.posted == [("j", "ann", True)]
    facts = desk.blobs.facts(spec.initial)
    assert facts is not None
    assert desk.quota.wanted == [{"j": 9 * facts.size_bytes}]
    assert not desk.books.locked()


@pytest.mark.parametrize(
    ("named", "what"),
    [("bundle", "code"), ("initial", "first model"), ("graphs", "graphs"), ("base", "frozen base")],
)
def test_a_job_whose_parts_were_not_uploaded_is_refused(desk: Desk, named: str, what: str) -> None:
    absent = "f" * 64
    spec = desk.spec(**{named: (absent,) if named == "base" else absent})
    with pytest.raises(Refused, match=rf"the job's {what} \(ffffffffffff…\) was not uploaded"):
        desk.takes(spec)
    assert desk.posted == []


def test_a_job_that_is_known_is_answered_and_not_queued_again(desk: Desk) -> None:
    for answer in (Done(job="j", reason="running"), Denied(reason="there is a job j already")):
        desk.ended.known["j"] = answer
        assert desk.takes(desk.spec()) == answer
    assert desk.posted == []


def test_a_signer_whom_devices_would_not_trust_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.register, "role_now", lambda peer: "pending")
    with pytest.raises(Refused, match=r"the job was not taken: ann: .*waiting to be approved"):
        desk.takes(desk.spec())

    def forged(spec: JobSpec, **_: object) -> str:
        raise PeerViolation("the signature is not of this job")

    monkeypatch.setattr(submissions, "check", forged)
    with pytest.raises(Refused, match=r"the job was not taken: .*signature is not of this job"):
        desk.takes(desk.spec())
    assert desk.posted == []
