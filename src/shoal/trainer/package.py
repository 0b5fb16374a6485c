"""Makes a task ready: packs its code, writes its model and data to files, describes its job. No torch, no clock.

The task's code runs in a separate process (``shoal.trainer.prepare_child``), never in this one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import re
import secrets
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import Misuse
from shoal.learning.algorithm_name import HOOKS, AlgorithmName
from shoal.learning.decay_skips import DecaySkips
from shoal.learning.outer_rule import RATES
from shoal.plan import Plan, unknown_key, usual_momentum
from shoal.trainer.algorithm_host import AlgorithmHost
from shoal.trainer.bundle import pack
from shoal.trainer.importer import file_of, is_script
from shoal.trainer.prepared_job import DIVIDED, PreparedJob, own_layout
from shoal.trainer.protocol import TrainerError, TrainerSettings
from shoal.trainer.shards import Manifest
from shoal.trainer.spawn import child
from shoal.until import until_from
from shoal.wire.messages import Dataset, JobSpec

Tell = Callable[[str], None]

_UNPREPARED = "the task could not be prepared"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyTask:
    """A task whose code, first model and data lie in files, with the plan its author suggests."""

    name: str
    entry: str
    arguments: dict[str, Any]
    bundle: bytes
    prepared: PreparedJob
    #: Notes for the person who submits it: files left out, tensors that did not fit.
    notes: tuple[str, ...] = ()


async def make_ready(
    path: Path,
    entry: str,
    *,
    out: Path,
    name: str = "",
    kwargs: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    start: Path | None = None,
    shared: Path | None = None,
    divided: bool = False,
    on_progress: Tell = lambda text: None,
) -> ReadyTask:
    """Pack the code, and build the first model and the data shards in a separate process, below ``out``.

    ``start`` is a safetensors file or a Hugging Face folder whose tensors the first model takes, where they fit.
    ``shared`` is a folder with the approved files of a shared set, for ``shoal.data.shared``.
    ``divided`` takes the examples of this machine also where the plan has them local, for simulated devices.
    """
    arguments = dict(kwargs or {})
    notes: list[str] = []
    algorithm = str((plan or {}).get("algorithm", ""))
    also = (file_of(AlgorithmName.parse(algorithm).entry),) if algorithm else ()
    bundle = await asyncio.to_thread(pack, path, entry, notes.append, also=also)
    on_progress(f"packed {path} ({len(bundle):,} bytes)")
    for note in notes:
        on_progress(note)
    out.mkdir(parents=True, exist_ok=True)
    seed, data = int((plan or {}).get("seed", 0)), DIVIDED if divided else str((plan or {}).get("data", ""))
    begins = ("--start", str(start.absolute())) if start else ()
    entries = ("--shared", str(shared.absolute())) if shared else ()
    options = ("--seed", str(seed), "--data", data, "--out", str(out), *begins, *entries)
    prepared, started = await _prepare_in_child(bundle, entry, arguments, options, on_progress)
    title = name or (path.name if path.is_dir() else path.stem)
    return ReadyTask(
        name=title, entry=entry, arguments=arguments, bundle=bundle, prepared=prepared, notes=(*notes, *started)
    )


# The job it becomes ------------------------------------------------------------------------------------


def spec_of(ready: ReadyTask, plan: Plan, *, job: str, graphs: str = "") -> JobSpec:
    """Return the job's description for a cluster, which names everything large by its hash."""
    prepared = ready.prepared
    _check_skips(prepared, plan)
    if is_script(ready.entry) and plan.passes > 1:
        raise Misuse(
            f"local_epochs = {plan.local_epochs}: a script goes over its examples in its own loop. Write the passes"
            " there, or leave local_epochs out"
        )
    return JobSpec(
        job=job,
        name=ready.name[:80],
        entry=ready.entry,
        kwargs_json=json.dumps(ready.arguments),
        bundle=hashlib.sha256(ready.bundle).hexdigest(),
        initial=prepared.model_sha256,
        base=prepared.base,
        train=_dataset(prepared.train),
        test=_dataset(prepared.test),
        plan=plan,
        graphs=graphs,
    )


def _check_skips(prepared: PreparedJob, plan: Plan) -> None:
    """Refuse a misspelt name before a job decays what it should not."""
    if missing := DecaySkips.parse(plan.decay_skips).unmatched(prepared.layout):
        names = ", ".join(entry.name for entry in prepared.layout.entries if entry.kind == "parameter")
        raise Misuse(
            f"decay_skips names {missing[0]!r}, which no parameter of the model matches. It has: {names[:500]}"
        )


def listing_of(manifest: Manifest) -> bytes:
    """Return a manifest as it is stored. The hash of these bytes names the set."""
    return json.dumps(manifest.to_plain(), sort_keys=True).encode()


def _dataset(manifest: Manifest) -> Dataset:
    return Dataset(manifest=hashlib.sha256(listing_of(manifest)).hexdigest(), examples=manifest.examples)


def job_id(name: str, *, letters: int = 4) -> str:
    """Return a short id that a person can type: the task's name and a few random letters."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "job"
    return f"{stem}-{secrets.token_hex(letters // 2)}"


def laid_over(own: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a task's own plan, overridden by those a person typed.

    If the person typed another outer step, leaves out the numbers that suited only the task's own step: the defaults of
    the typed one then apply. A rate of 1 suits SGD, and is a thousand times too large for Adam.
    """
    kept = dict(own)
    if not {"outer", "nesterov"} & set(typed):
        return kept | dict(typed)
    was = kept.pop("outer", "") or ("nesterov" if kept.get("nesterov") else "sgd")
    kept.pop("nesterov", None)
    if kept.get("outer_rate") == RATES.get(was):
        kept.pop("outer_rate", None)
    if kept.get("momentum") == usual_momentum(was, str(kept.get("pace", ""))):
        kept.pop("momentum", None)
    return kept | dict(typed)


def plan_from(values: Mapping[str, Any]) -> Plan:
    """Make a plan from plain values, such as those of ``laid_over``."""
    known = {f.name for f in dataclasses.fields(Plan)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise Misuse(unknown_key(unknown[0]))
    plain = dict(values)
    if isinstance(plain.get("until"), Mapping):
        plain["until"] = until_from(plain["until"])
    plan = Plan(**plain)
    if (why := plan.why_not_new) is not None:
        raise Misuse(why)
    return plan


def trainer_settings(ready: ReadyTask, plan: Plan, *, bundle_dir: str, **options: Any) -> TrainerSettings:
    """Return the settings for a trainer on this machine, with the task's code unpacked in ``bundle_dir``."""
    prepared = ready.prepared
    _check_skips(prepared, plan)
    return TrainerSettings.of_plan(
        plan,
        bundle_dir=bundle_dir,
        entry=ready.entry,
        arguments=ready.arguments,
        train=prepared.paths(prepared.train),
        test=prepared.paths(prepared.test),
        base=prepared.base_paths,
        layout=prepared.layout,
        own=own_layout(Path(prepared.model)),
        **options,
    )


async def with_methods(plan: Plan, ready: ReadyTask) -> Plan:
    """Return the plan with the methods of its algorithm, which runs in its confined process as it will on a leader.
    Raises Misuse if it cannot be built, or does not suit the plan."""
    if not plan.algorithm:
        return plan
    host, name = AlgorithmHost(plan, ready.bundle, ready.prepared.layout), AlgorithmName.parse(plan.algorithm)
    try:
        hooks = await host.hooks()
    except TrainerError as error:
        raise Misuse(f"algorithm = {plan.algorithm!r}: {error}") from None
    finally:
        await host.close()
    if not hooks:
        raise Misuse(f"algorithm = {plan.algorithm!r}: it has none of the methods {', '.join(HOOKS)}")
    return dataclasses.replace(plan, algorithm=str(AlgorithmName(name.entry, hooks)))


# The process that prepares it --------------------------------------------------------------------------


async def _prepare_in_child(
    bundle: bytes, entry: str, arguments: dict[str, Any], options: tuple[str, ...], tell: Tell
) -> tuple[PreparedJob, list[str]]:
    """Prepare the task in a separate process. Return the result and notes for a person: tensors that it started from,
    files that devices lack."""
    with tempfile.NamedTemporaryFile(suffix=".zip") as file:
        file.write(bundle)
        file.flush()
        outcome: dict[str, Any] = {}
        started: list[str] = []
        step = ""
        async with child(
            "shoal.trainer.prepare_child",
            *("--bundle", file.name, "--entry", entry, "--arguments", json.dumps(arguments)),
            *options,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            errors = asyncio.create_task(process.stderr.read())
            async for line in process.stdout:
                outcome = json.loads(line)
                if "step" in outcome:
                    step = outcome["step"]
                    tell(_told(outcome))
                    started += [str(outcome["told"])] if step in ("start", "note") else []
            await process.wait()
    if "prepared" in outcome:
        return PreparedJob.from_plain(outcome["prepared"]), started
    if "failed" in outcome:
        failed = outcome["failed"]
        where = f", at {failed['where']}" if failed.get("where") else ""
        what = "one batch was tried here, before anything was sent, and failed" if step == "trial" else _UNPREPARED
        raise Misuse(f"{what}: {failed['reason']}{where}")
    words = (await errors).decode(errors="replace").strip().splitlines()
    last = words[-1] if words else f"exit code {process.returncode}"
    if "No module named 'torch'" in last:
        last = "PyTorch is not installed here: pip install 'torch>=2.11'"
    raise Misuse(f"{_UNPREPARED}: {last}")


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
        case {"step": "script", "name": name}:
            return f"running {name} as far as shoal.worker"
        case {"step": "model"}:
            return "building the first model"
        case {"step": "base", "bytes": size_bytes}:
            return f"writing the frozen base, {size_bytes / 1e6:,.0f} MB"
        case {"step": "start" | "note", "told": told}:
            return str(told)
        case {"step": "trial"}:
            return "trying one batch"
        case {"step": "untried", "reason": why}:
            return f"no batch was tried: {why}"
    return str(step.get("step", ""))
