"""An operator's side of a cluster: prepare a task, submit it, ask, stop, fetch the model. No torch here."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import re
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import Misuse, ShoalError
from shoal.plan import Plan, Until
from shoal.runtime.places import Places
from shoal.training.bundle import pack
from shoal.training.find import find_task
from shoal.training.prepared import Prepared
from shoal.transport.enrol import Enrolled
from shoal.transport.grpc import GrpcLink
from shoal.wire.messages import AskModel, AskStatus, Blob, Dataset, Done, JobSpec, Status, StopJob, Submit

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyTask:
    """A task whose code, first model and data lie in files, with the plan its author suggests."""

    name: str
    entry: str
    arguments: dict[str, Any]
    bundle: bytes
    prepared: Prepared


class Operator:
    def __init__(self, link: GrpcLink, places: Places) -> None:
        self._link = link
        self._places = places

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, home: Path) -> AsyncIterator[Operator]:
        """Reach the cluster this machine operates."""
        places = Places(home)
        try:
            access = Enrolled.load(places.operator)
        except (OSError, ShoalError):
            raise Misuse(
                f"no cluster is operated from {home}: run `shoal up` on this machine first, or name its --home"
            ) from None
        link = GrpcLink(access.identity, server_node=access.manager_node, endpoint=access.manager_endpoint)
        try:
            yield cls(link, places)
        finally:
            await link.close()

    async def status(self, job: str = "", after_event: int = 0) -> Status:
        answer = await self._link.operate(AskStatus(job=job, after_event=after_event))
        assert isinstance(answer, Status)
        return answer

    async def stop(self, job: str, reason: str = "stopped by the operator") -> None:
        await self._link.operate(StopJob(job=job, reason=reason))

    async def pull_model(self, job: str, path: Path) -> None:
        """Write a job's newest durable model, verified by its hash."""
        blob = await self._link.operate(AskModel(job=job))
        assert isinstance(blob, Blob)
        digest = hashlib.sha256()
        draft = path.with_name(f".{path.name}.part")
        try:
            with draft.open("wb") as file:
                async for chunk in self._link.fetch(blob.sha256, on_size=lambda _: None):
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != blob.sha256:
                raise ShoalError("the model was damaged on the way: try again")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    async def prepare_and_submit(
        self,
        task: str,
        *,
        name: str = "",
        kwargs: Mapping[str, Any] | None = None,
        plan: Mapping[str, Any] | None = None,
        on_progress: Tell = lambda text: None,
    ) -> str:
        """From ``examples/mnist`` to a running job. ``plan`` holds only what differs from the task's own plan."""
        path, entry = find_task(task)
        ready = await self.prepare(path, entry, name=name, kwargs=kwargs, plan=plan, on_progress=on_progress)
        return await self.submit(ready, plan=plan or {}, on_progress=on_progress)

    async def prepare(
        self,
        path: Path,
        entry: str,
        *,
        name: str = "",
        kwargs: Mapping[str, Any] | None = None,
        plan: Mapping[str, Any] | None = None,
        on_progress: Tell = lambda text: None,
    ) -> ReadyTask:
        """Pack the code; build the first model and the data shards in a process of their own."""
        arguments = dict(kwargs or {})
        bundle = await asyncio.to_thread(pack, path, entry)
        on_progress(f"packed {path} ({len(bundle):,} bytes)")
        seed = int((plan or {}).get("seed", 0))
        prepared = await _prepare_in_child(bundle, entry, arguments, seed, self._places.prepared, on_progress)
        title = name or (path.name if path.is_dir() else path.stem)
        return ReadyTask(name=title, entry=entry, arguments=arguments, bundle=bundle, prepared=prepared)

    async def submit(self, ready: ReadyTask, *, plan: Mapping[str, Any], on_progress: Tell = lambda text: None) -> str:
        """Upload what the cluster lacks and queue the job; returns its id once that is durable."""
        prepared = ready.prepared
        whole = plan_from({**prepared.plan, **plan})
        bundle = await self._upload_bytes(ready.bundle)
        await self._link.store(prepared.model_sha256, Path(prepared.model))
        sets = []
        for split, manifest in (("train", prepared.train), ("test", prepared.test)):
            on_progress(f"uploading {manifest.examples:,} {split} examples")
            for shard, path in zip(manifest.shards, prepared.paths(manifest), strict=True):
                await self._link.store(shard.sha256, Path(path))
            listing = await self._upload_bytes(json.dumps(manifest.to_plain(), sort_keys=True).encode())
            sets.append(Dataset(manifest=listing, examples=manifest.examples))
        spec = JobSpec(
            job=job_id(ready.name),
            name=ready.name[:80],
            entry=ready.entry,
            kwargs_json=json.dumps(ready.arguments),
            bundle=bundle,
            initial=prepared.model_sha256,
            train=sets[0],
            test=sets[1],
            plan=whole,
        )
        answer = await self._link.operate(Submit(spec=spec))
        assert isinstance(answer, Done)
        return answer.job

    async def _upload_bytes(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            await self._link.store(sha256, Path(file.name))
        return sha256


def job_id(name: str) -> str:
    """A short id a person can type: the task's name and four random letters."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "job"
    return f"{stem}-{secrets.token_hex(2)}"


def plan_from(values: Mapping[str, Any]) -> Plan:
    """A plan from plain values, such as the task's own with what the person typed laid over it."""
    known = {f.name for f in dataclasses.fields(Plan)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise Misuse(f"a plan has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    plain = dict(values)
    if isinstance(plain.get("until"), Mapping):
        plain["until"] = Until(**plain["until"])
    return Plan(**plain)


async def _prepare_in_child(
    bundle: bytes, entry: str, arguments: dict[str, Any], seed: int, out: Path, tell: Tell
) -> Prepared:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(suffix=".zip") as file:
        file.write(bundle)
        file.flush()
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "shoal.training.prepare"),
            *("--bundle", file.name, "--entry", entry, "--arguments", json.dumps(arguments)),
            *("--seed", str(seed), "--out", str(out)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stderr is not None
        errors = asyncio.create_task(child.stderr.read())
        outcome: dict[str, Any] = {}
        try:
            async for line in child.stdout:
                outcome = json.loads(line)
                if "step" in outcome:
                    tell(_told(outcome))
            await child.wait()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
    if "prepared" in outcome:
        return Prepared.from_plain(outcome["prepared"])
    if "failed" in outcome:
        failed = outcome["failed"]
        where = f", at {failed['where']}" if failed.get("where") else ""
        raise Misuse(f"the task could not be prepared: {failed['reason']}{where}")
    words = (await errors).decode(errors="replace").strip().splitlines()
    last = words[-1] if words else f"exit code {child.returncode}"
    if "No module named 'torch'" in last:
        last = "PyTorch is not installed here: pip install 'shoal[torch]'"
    raise Misuse(f"the task could not be prepared: {last}")


def _told(step: dict[str, Any]) -> str:
    match step:
        case {"step": "cached"}:
            return "prepared before: nothing to do"
        case {"step": "read", "split": split, "examples": done}:
            return f"read {done:,} {split} examples"
        case {"step": "examples", "split": split}:
            return f"reading {split} examples"
        case {"step": "write", "split": split, "examples": done}:
            return f"wrote {done:,} {split} examples"
        case {"step": "model"}:
            return "building the first model"
    return str(step.get("step", ""))
