"""An operator's side of a cluster: prepare a task, submit it, ask, stop, fetch the model. No torch here."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.errors import AnsweredElsewhere, Misuse, PeerViolation, Refused, ShoalError
from shoal.identity.card_files import card_key_of, make_card_key
from shoal.identity.cards import CARD_DAYS_MAX, CardKey, make_card
from shoal.identity.enrolment import Enrolled
from shoal.identity.identity import Identity
from shoal.identity.signing import check, sign
from shoal.net.grpc import GrpcLink
from shoal.net.renewal import kept_fresh
from shoal.plan import Plan
from shoal.runtime.paths import Paths
from shoal.runtime.shared_sets import SharedSet
from shoal.store.blobs import read_small
from shoal.store.files import AtomicFile, telling_disk_full
from shoal.store.readable import let_others_read
from shoal.trainer.bundle import pack
from shoal.trainer.exporting import TaskFiles
from shoal.trainer.find import find_task
from shoal.trainer.package import (
    ReadyTask,
    Tell,
    job_id,
    laid_over,
    listing_of,
    make_ready,
    plan_from,
    spec_of,
    with_methods,
)
from shoal.trainer.portable.capturing import capture_ready
from shoal.trainer.shards import Manifest
from shoal.trainer.whole_file import write_whole
from shoal.trust import MANAGER_DECIDES
from shoal.wire.messages import (
    ActList,
    ActView,
    ApproveNode,
    AskActs,
    AskContributions,
    AskManager,
    AskModel,
    AskSpec,
    AskStatus,
    AskTokens,
    AskVersions,
    Blob,
    CollectGarbage,
    ContributionList,
    ContributionView,
    Done,
    DrainManager,
    DrainNode,
    ForgetNode,
    JobSpec,
    LabelNode,
    MakeToken,
    ManagerView,
    Message,
    PublishModel,
    RemoveJob,
    RevokeNode,
    RevokeToken,
    RollBackModel,
    SettleContributions,
    Status,
    StopJob,
    Submit,
    SubmittedJob,
    TokenList,
    TokenMade,
    TokenView,
    TransferJob,
    UndrainManager,
    UndrainNode,
    VersionList,
)

#: How long another manager may take to say how it is.
MANAGER_ANSWERS_S = 5.0

#: How many random letters the id of a new job has, by attempt: a short one that is taken is drawn again.
ID_LETTERS = (4, 4, 6, 8)


def _not_operated(places: Paths) -> str:
    """Return why commands have no cluster here: none was ever made, or this device only works for one."""
    with contextlib.suppress(OSError, ShoalError):
        member = Enrolled.load(places.node)
        return (
            f"this device is {member.identity.node} in cluster {member.identity.cluster}, and works for it; the cluster"
            f" is operated where its manager is, at {member.manager_endpoint}. Run the command there. To operate it"
            " from here as well: `shoal token create --role operator` there, `shoal join LINE --home DIR` here, then"
            " the command with the same --home"
        )
    return f"no cluster is operated from {places.home}: run `shoal up` on this machine first, or name its --home"


def _holds(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False


def _link_of(access: Enrolled) -> GrpcLink:
    return GrpcLink(access.identity, server_node=access.manager_node, endpoint=access.manager_endpoint)


class Operator:
    def __init__(self, access: Enrolled, places: Paths) -> None:
        self._places = places
        self._access = access
        self._links = [_link_of(access)]

    @property
    def _link(self) -> GrpcLink:
        """As who this machine is by now: another command may have renewed the certificate, and used it, since."""
        with contextlib.suppress(ShoalError, OSError):
            access = Enrolled.load(self._places.operator)
            if access != self._access:
                self._access = access
                self._links.append(_link_of(access))
        return self._links[-1]

    @property
    def _identity(self) -> Identity:
        return self._access.identity

    async def close(self) -> None:
        for link in self._links:
            await link.close()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, home: Path) -> AsyncIterator[Operator]:
        """Reach the cluster this machine operates."""
        places = Paths(home)
        try:
            access = await kept_fresh(places.operator, now_s=time.time())
        except Refused:
            raise
        except (OSError, ShoalError):
            raise Misuse(_not_operated(places)) from None
        operator = cls(access, places)
        try:
            yield operator
        finally:
            await operator.close()

    async def status(
        self, job: str = "", after_event: int = 0, *, tracebacks: bool = False, endpoint: str = ""
    ) -> Status:
        """Return the cluster with all its nodes, page by page, its open jobs and the latest that ended; or one job,
        with the first page of nodes. ``endpoint``: the manager to ask, if it is not the one that this machine knows."""
        asked = AskStatus(job=job, after_event=after_event, tracebacks=tracebacks)
        status = await self._status(asked, endpoint)
        nodes, next_node = list(status.nodes), status.next_node
        while next_node and not job:
            page = await self._status(AskStatus(after_node=next_node), endpoint)
            # By name: a manager that went back would be asked without an end.
            next_node = page.next_node if page.next_node > next_node else ""
            nodes.extend(page.nodes)
        return replace(status, nodes=tuple(nodes), next_node="")

    @property
    def endpoint(self) -> str:
        """Where the manager is that this machine knows."""
        return self._access.manager_endpoint

    async def ended_jobs(self, page: int = 1) -> Status:
        """Return a page of the ended jobs, the latest first, with how many there are. Pages are counted from 1."""
        return await self._status(AskStatus(ended_page=page))

    async def jobs_called(self, text: str) -> Status:
        """Return the jobs with this id, start of an id, or name, also ended ones; if there are none, or no text, those
        that a status lists."""
        return await self._status(AskStatus(called=text))

    async def _operate(self, command: Message, endpoint: str = "") -> Message:
        """Have a command answered: by the manager that this machine knows or at this endpoint, or by the one that has
        the job."""
        try:
            if not endpoint:
                return await self._link.operate(command)
            return await self._operate_at(endpoint, command)
        except AnsweredElsewhere as elsewhere:
            return await self._operate_at(elsewhere.endpoint, command)

    async def _operate_at(self, endpoint: str, command: Message) -> Message:
        link = _link_of(replace(self._access, manager_endpoint=endpoint))
        try:
            return await link.operate(command)
        finally:
            await link.close()

    async def manager(self, endpoint: str = "") -> ManagerView:
        """How a manager itself is: the one that this machine knows, or the one at this endpoint."""
        answer = await self._operate(AskManager(), endpoint)
        assert isinstance(answer, ManagerView)
        return answer

    async def managers(self) -> tuple[ManagerView, ...]:
        """Return the state of each manager of the cluster, by address. A manager that does not answer is in trouble."""
        own = await self.manager()
        others = await asyncio.gather(*(self._manager_at(endpoint) for endpoint in own.others))
        return tuple(sorted((own, *others), key=lambda view: view.manager))

    async def _manager_at(self, endpoint: str) -> ManagerView:
        try:
            async with asyncio.timeout(MANAGER_ANSWERS_S):
                return await self.manager(endpoint)
        except (ShoalError, OSError, TimeoutError) as error:
            return ManagerView(manager=endpoint, trouble=f"it does not answer: {error or 'no answer in time'}")

    async def drain_manager(self, manager: str = "", reason: str = "") -> str:
        """Have the manager at this address, or the one that this machine knows, give its jobs to others."""
        return await self._do(DrainManager(manager=await self._address(manager), reason=reason))

    async def undrain_manager(self, manager: str = "") -> str:
        return await self._do(UndrainManager(manager=await self._address(manager)))

    async def _address(self, manager: str) -> str:
        """The log of acts names a manager by its address."""
        return manager or (await self.manager()).manager

    async def _status(self, asked: AskStatus, endpoint: str = "") -> Status:
        answer = await self._operate(asked, endpoint)
        assert isinstance(answer, Status)
        return answer

    async def stop(self, job: str, reason: str = "") -> None:
        await self._operate(StopJob(job=job, reason=reason))

    async def transfer(self, job: str, node: str = "") -> str:
        """Let another node lead a job; says what happens now."""
        answer = await self._operate(TransferJob(job=job, node=node))
        assert isinstance(answer, Done)
        return answer.reason

    async def make_token(self, *, role: str, uses: int, valid_s: float, label: str) -> TokenMade:
        answer = await self._operate(MakeToken(role=role, uses=uses, valid_s=valid_s, label=label))
        assert isinstance(answer, TokenMade)
        return answer

    async def tokens(self) -> tuple[TokenView, ...]:
        answer = await self._operate(AskTokens())
        assert isinstance(answer, TokenList)
        return answer.tokens

    async def revoke_token(self, token: str) -> str:
        """What was done, in words."""
        return await self._do(RevokeToken(token=token))

    async def revoke_node(self, node: str, reason: str = "") -> str:
        return await self._do(RevokeNode(node=node, reason=reason))

    async def approve_node(self, node: str, *, card: bytes = b"") -> str:
        return await self._do(ApproveNode(node=node, card=card))

    def sign_card(self, node: str, key: bytes, *, days: float) -> bytes:
        """Return a card for the device whose card key this is. It is signed on this machine, by this operator."""
        if not 0 < days <= CARD_DAYS_MAX:
            raise Misuse(f"a card is valid for up to {CARD_DAYS_MAX:g} days, not {days:g}")
        signer, until_s = make_card_key(self._places.operator), int(time.time() + days * 86400)
        return make_card(signer, cluster=self._identity.cluster, node=node, key=key, until_s=until_s)

    async def label_node(self, node: str, labels: tuple[str, ...]) -> str:
        """Say what a device is, ``NAME=VALUE`` each; an empty value takes a label of an operator back."""
        return await self._do(LabelNode(node=node, labels=labels))

    async def acts(self, subject: str = "") -> list[ActView]:
        """What operators did, oldest first; with a subject, only acts about that job or device."""
        found: list[ActView] = []
        while True:
            answer = await self._operate(AskActs(after=found[-1].seq if found else 0, subject=subject))
            assert isinstance(answer, ActList)
            found.extend(answer.acts)
            if not answer.acts or not answer.next_act:
                return found

    async def contributions(self, name: str = "") -> list[ContributionView]:
        """Return what members added to a shared set, or to all, in that order."""
        found: list[ContributionView] = []
        while True:
            asked = AskContributions(set=name, after=found[-1].number if found else 0)
            answer = await self._operate(asked)
            assert isinstance(answer, ContributionList)
            found.extend(answer.contributions)
            if not answer.contributions or not answer.next_number:
                return found

    async def settle_contributions(self, name: str, sha256s: Sequence[str], *, approve: bool) -> str:
        """Approve files of entries, or reject them for good. Return what was done."""
        return await self._do(SettleContributions(set=name, sha256s=tuple(sha256s), approve=approve))

    async def pull_entries(self, sha256: str, path: Path) -> None:
        """Write a file of entries, verified by its hash. ``path`` is replaced at once."""
        await self._fetch(sha256, path, what="the file of entries")

    async def shared_set(self, name: str, least: int, tell: Tell = lambda text: None) -> Path:
        """Wait until a shared set has this many approved entries. Return a folder with them."""
        found = SharedSet(name, self._places, ask=self.contributions, fetch=self.pull_entries)
        return await found.when(least, tell)

    async def drain_node(self, node: str, reason: str = "") -> str:
        return await self._do(DrainNode(node=node, reason=reason))

    async def undrain_node(self, node: str) -> str:
        return await self._do(UndrainNode(node=node))

    async def forget_node(self, node: str) -> str:
        return await self._do(ForgetNode(node=node))

    async def remove_job(self, job: str) -> str:
        """Remove an ended job, its checkpoints, its published versions and what it alone is made of."""
        return await self._do(RemoveJob(job=job))

    async def collect_garbage(self, *, dry_run: bool = False) -> str:
        """Remove what no job names from the manager's disk; says how much that was."""
        return await self._do(CollectGarbage(dry_run=dry_run))

    async def first_models(self) -> frozenset[str]:
        """Return the hashes of the first models of open jobs and of the latest that ended: they name what was prepared
        for them."""
        answers = [await self._operate(AskSpec(job=view.job)) for view in (await self.status()).jobs]
        return frozenset(answer.spec.initial for answer in answers if isinstance(answer, SubmittedJob))

    async def _do(self, command: Message) -> str:
        answer = await self._operate(command)
        assert isinstance(answer, Done)
        return answer.reason

    async def publish(self, job: str, reason: str = "") -> str:
        """Serve the newest durable version from now on; says what was done."""
        return await self._do(PublishModel(job=job, reason=reason))

    async def roll_back(
        self, job: str, version: int = 0, *, reason: str = "", until_accuracy: float | None = None
    ) -> str:
        """Serve an earlier version again; 0: the one before."""
        asked = RollBackModel(job=job, version=version, reason=reason, until_accuracy=until_accuracy)
        return await self._do(asked)

    async def versions(self, job: str) -> VersionList:
        answer = await self._operate(AskVersions(job=job))
        assert isinstance(answer, VersionList)
        return answer

    async def pull_model(
        self, job: str, path: Path, *, version: int = 0, newest: bool = False, whole: bool = False
    ) -> None:
        """Write a job's model, verified by its hash: the one that is served, one that was published, or the newest
        durable one, also where none is served. ``whole``: with the frozen tensors. ``path`` is replaced at once."""
        blob = await self._operate(AskModel(job=job, version=version, newest=newest))
        assert isinstance(blob, Blob)
        base = [await self._kept(part, "the frozen base") for part in (await self.job_spec(job)).base] if whole else []
        if not base:
            await self._fetch(blob.sha256, path, what="the model")
            return
        with tempfile.TemporaryDirectory(prefix="shoal-pull-") as scratch:
            model = Path(scratch) / "model.safetensors"
            await self._fetch(blob.sha256, model, what="the model")
            await asyncio.to_thread(write_whole, model, base, path)

    async def _kept(self, sha256: str, what: str) -> Path:
        """A blob as a file here. What was prepared on this machine, or fetched before, is not fetched again."""
        folder = self._places.prepared / "shards"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / sha256
        if not await asyncio.to_thread(_holds, path, sha256):
            await self._fetch(sha256, path, what=what)
        return path

    async def _fetch(self, sha256: str, path: Path, *, what: str) -> None:
        with telling_disk_full(path.parent):
            pending = AtomicFile(path.parent)
            try:
                async for chunk in self._link.fetch(sha256):
                    pending.file.write(chunk)
                if pending.sha256 != sha256:
                    raise ShoalError(f"{what} was damaged on the way: try again")
                let_others_read(pending.file)
                pending.commit(path)
            finally:
                pending.abort()

    async def job_spec(self, job: str) -> JobSpec:
        """A job as an operator of this cluster signed it. Without such a signature, nothing of it runs here."""
        answer = await self._operate(AskSpec(job=job))
        assert isinstance(answer, SubmittedJob)
        own = self._identity
        check(answer.spec, ca_pem=own.ca_pem, cluster=own.cluster, now_s=None)
        if answer.spec.job != job:
            raise PeerViolation(f"the manager gave job {answer.spec.job} where {job} was asked for")
        return answer.spec

    async def task_files(self, job: str, task: str = "") -> TaskFiles:
        """A job's code, frozen base and held-out examples, as files here. ``task`` names other code to take."""
        spec, kept = await self.job_spec(job), self._kept
        test: tuple[str, ...] | None = ()
        if spec.test.examples:
            listed = Manifest.from_json(read_small(await kept(spec.test.manifest, "the list of examples")))
            test = tuple([str(await kept(shard.sha256, "the held-out set")) for shard in listed.shards])
        elif task:
            # The task that is named may have some by now.
            test = None
        base = tuple([str(await kept(part, "the frozen base")) for part in spec.base])
        arguments, seed = json.loads(spec.kwargs_json), spec.plan.seed
        if task:
            path, entry = find_task(task)
            bundle = await asyncio.to_thread(pack, path, entry, lambda note: None)
        else:
            entry, bundle = spec.entry, read_small(await kept(spec.bundle, "the code"))
        return TaskFiles(
            bundle=bundle,
            entry=entry,
            arguments=arguments,
            seed=seed,
            base=base,
            test=test,
            foreign=not task,
        )

    async def prepare_and_submit(
        self,
        task: str,
        *,
        name: str = "",
        kwargs: Mapping[str, Any] | None = None,
        plan: Mapping[str, Any] | None = None,
        start: str | Path = "",
        shared: str = "",
        start_when: int = 1,
        portable: bool = False,
        on_progress: Tell = lambda text: None,
    ) -> str:
        """From ``examples/mnist`` to a running job. ``plan`` holds only what differs from the task's own plan.

        ``shared``: the shared set that it trains on, once this many entries of it (``start_when``) are approved.
        """
        path, entry = find_task(task)
        folder = await self.shared_set(shared, start_when, on_progress) if shared else None
        ready = await self.prepare(
            path, entry, name=name, kwargs=kwargs, plan=plan, start=start, shared=folder, on_progress=on_progress
        )
        return await self.submit(ready, plan=plan or {}, portable=portable, on_progress=on_progress)

    async def prepare(
        self,
        path: Path,
        entry: str,
        *,
        name: str = "",
        kwargs: Mapping[str, Any] | None = None,
        plan: Mapping[str, Any] | None = None,
        start: str | Path = "",
        shared: Path | None = None,
        on_progress: Tell = lambda text: None,
    ) -> ReadyTask:
        """Pack the code; build the first model and the data shards in a process of their own.

        The first model takes the tensors of ``start`` that fit: a safetensors file, a Hugging Face folder,
        ``JOB``, or ``JOB@VERSION``.
        """
        with tempfile.TemporaryDirectory(prefix="shoal-start-") as scratch:
            return await make_ready(
                path,
                entry,
                out=self._places.prepared,
                name=name,
                kwargs=kwargs,
                plan=plan,
                start=await self._start_file(start, Path(scratch)) if start else None,
                shared=shared,
                on_progress=on_progress,
            )

    async def _start_file(self, start: str | Path, scratch: Path) -> Path:
        """The file or folder itself, or the model of a job of this cluster: its newest version, or a published one."""
        if (path := Path(start).expanduser()).is_file() or path.is_dir():
            return path
        job, at, version = str(start).partition("@")
        if not (await self._status(AskStatus(job=job))).jobs:
            raise Misuse(
                f"start {str(start)!r} is neither a file, a folder nor a job of this cluster: "
                "`shoal model pull` writes the model of a job of another cluster to a file"
            )
        if at and not version.isdecimal():
            raise Misuse(f"start {str(start)!r}: write JOB@VERSION with a number, see `shoal model versions {job}`")
        pulled = scratch / "start.safetensors"
        await self.pull_model(job, pulled, version=int(version or 0), newest=not at, whole=True)
        return pulled

    async def submit(
        self,
        ready: ReadyTask,
        *,
        plan: Mapping[str, Any],
        portable: bool = False,
        on_progress: Tell = lambda text: None,
    ) -> str:
        """Upload what the cluster lacks and queue the job; returns its id once that is durable.

        ``portable``: capture its step for devices without PyTorch. Where that cannot be done, it is told why, and the
        job is for PyTorch devices alone.
        """
        prepared = ready.prepared
        whole = await with_methods(plan_from(laid_over(prepared.plan, plan)), ready)
        card_key = await self._check_members(whole, on_progress)
        graphs = await self._upload_graphs(ready, whole, on_progress) if portable else ""
        await self._upload_bytes(ready.bundle)
        await self._link.store(prepared.model_sha256, Path(prepared.model))
        if prepared.base:
            on_progress(f"uploading the frozen base, {sum(map(os.path.getsize, prepared.base_paths)) / 1e6:,.0f} MB")
        for part, path in zip(prepared.base, prepared.base_paths, strict=True):
            await self._link.store(part, Path(path))
        for split, manifest in (("train", prepared.train), ("test", prepared.test)):
            on_progress(f"uploading {manifest.examples:,} {split} examples")
            for shard, path in zip(manifest.shards, prepared.paths(manifest), strict=True):
                await self._link.store(shard.sha256, Path(path))
            await self._upload_bytes(listing_of(manifest))
        for letters in ID_LETTERS:
            job = job_id(ready.name, letters=letters)
            spec = sign(spec_of(ready, whole, job=job, graphs=graphs), self._identity, card_key)
            try:
                answer = await self._operate(Submit(spec=spec))
            except Refused:
                # The manager refuses an id that some job has, or had: then another one is tried.
                if letters == ID_LETTERS[-1] or not (await self._status(AskStatus(job=job))).jobs:
                    raise
                continue
            assert isinstance(answer, Done)
            return answer.job
        raise AssertionError("the last attempt returns or raises")

    async def _check_members(self, plan: Plan, tell: Tell) -> CardKey | None:
        """Return this operator's card key, or None if it has none.

        Raises Misuse if a sealed plan asks for signed members and too few devices have a card.
        """
        sealed, card_key = plan.believes.sealed, card_key_of(self._places.operator)
        if sealed is None:
            return card_key
        if sealed.members is None:
            tell(f"Warning: {MANAGER_DECIDES}. `members=` in the plan prevents that (docs/sealed.md)")
            return card_key
        now_s = time.time()
        signed = {view.node for view in (await self.status()).nodes if view.card_until_s > now_s}
        how = "Sign devices with `shoal nodes approve NODE --key KEY`, with the key that `shoal join` shows on each"
        if card_key is None:
            raise Misuse(f"trust = {plan.trust!r}: this operator has no card key yet. {how}")
        if sealed.helper is not None and sealed.helper not in signed:
            raise Misuse(f"trust = {plan.trust!r}: the helper {sealed.helper} has no valid card. {how}")
        if (count := len(signed - {sealed.helper})) < plan.workers_least:
            raise Misuse(
                f"trust = {plan.trust!r}: {count} devices have a valid card, and the job needs at least"
                f" {plan.workers_least}. {how}"
            )
        if count > sealed.members:
            tell(
                f"Warning: {count} devices have a valid card, and the plan counts {sealed.members} members: write"
                f" members={count}, or more of them than the plan says may collude"
            )
        return card_key

    async def _upload_graphs(self, ready: ReadyTask, plan: Plan, tell: Tell) -> str:
        with tempfile.TemporaryDirectory(prefix="shoal-graphs-") as folder:
            captured = await capture_ready(ready, plan, folder=Path(folder), on_progress=tell)
            if captured.path is None:
                return ""
            await self._link.store(captured.sha256, captured.path)
            return captured.sha256

    async def _upload_bytes(self, data: bytes) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            await self._link.store(hashlib.sha256(data).hexdigest(), Path(file.name))
