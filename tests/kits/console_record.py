"""Records what a console would show of a real cluster: its status twice a second, written as states and patches.

Five agents of this machine train digits; one is killed with -9 and comes back, one is frozen for a while, and an
operator rolls the model back. ``console_player`` plays the file to a browser.

    python tests/kits/console_record.py --seconds 100
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from shoal.cli.render.format import plural, share_text
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.wire.messages import JobView, NodeView, PublishedView, Status, WorkerView

RECORDING = Path(__file__).with_name("console_recording.json.gz")
DEVICES = ("attic-pi4", "cellar-pi4", "garage-pi3", "jetson-nano", "porch-pi5")
POLL_S = 0.5

DOES = {
    "working": ("train", "trains version {version}"),
    "evaluating": ("evaluate", "judges version {version} on held-out examples"),
    "delivering": ("upload", "its update is on its way"),
    "waiting": ("wait", "{reason}"),
    "ready": ("wait", "waits for a lease"),
    "late": ("wait", "its lease expired"),
    "failing": ("wait", "{reason}"),
}

State = dict[str, Any]


def merge_patch(old: Any, new: Any) -> Any:
    """The RFC 7386 patch that makes ``new`` of ``old``."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    patch = {name: None for name in old if name not in new}
    for name, value in new.items():
        if name not in old:
            patch[name] = value
        elif old[name] != value:
            patch[name] = merge_patch(old[name], value)
    return patch


def node_of(view: NodeView, worker: WorkerView | None, version: int, role: str) -> State:
    does, why = "idle", view.reason
    if view.state == "lost":
        does = "lost"
    elif view.job and worker is None:
        does, why = "prepare", "has not reached the leader yet"
    elif worker is not None:
        does, why = DOES[worker.state]
        why = why.format(version=version, reason=worker.reason) or "waits for the others"
        if worker.slowness >= 1.25:
            why += f"; {worker.slowness:.1f} times as long as the median device"
    node: State = {
        "state": view.state, "standing": view.standing, "reason": view.reason, "job": view.job, "does": does,
        "why": why, "role": role, "machine": view.facts.arch, "cores": view.facts.cpus,
        "memory_mb": view.facts.memory_mb, "load": round(view.load, 2), "memory_free_mb": view.memory_free_mb,
        "heard_s": round(view.heard_s, 1),
    }  # fmt: skip
    if worker is not None:
        node |= {
            "slowness": round(worker.slowness, 2), "batches": worker.batches, "bytes_up": worker.bytes_up,
            "bytes_down": worker.bytes_down, "lease_s": round(worker.lease_s, 3), "train_s": round(worker.train_s, 3),
        }  # fmt: skip
    return node


def job_of(view: JobView, told: Status, versions: tuple[PublishedView, ...], rates: dict[str, float]) -> State:
    progress = view.progress
    named = ("version", "durable_version", "epoch", "batches_applied", "batches_total", "train_loss", "rounds_per_s",
             "examples_per_s", "bytes_up", "bytes_down", "seconds", "refused", "staleness", "saturation",
             "saturation_reason")  # fmt: skip
    metrics = {each.name: each for each in progress.metrics} if progress else {}
    accuracy = metrics.get("accuracy")
    sentence = f"{view.name} is at {share_text(accuracy.value, 1)}" if accuracy else f"{view.name} has not been judged"
    plan = {name: getattr(view.plan, name) for name in view.plan.__dataclass_fields__}
    plain = {name: value for name, value in plan.items() if isinstance(value, str | int | float | bool)}
    return {
        "name": view.name, "state": str(progress.state if progress else view.state),
        "reason": (progress.reason if progress else "") or view.reason, "since_s": round(view.since_s, 1),
        "leader": view.leader, "term": view.term, "tone": "ok", "sentence": sentence,
        "progress": {name: getattr(progress, name) for name in named} if progress else None,
        "metrics": {name: {"value": each.value, "lower": each.lower} for name, each in metrics.items()},
        "workers": [each.node for each in progress.workers] if progress else [],
        "topology": {
            "kind": progress.topology if progress else "", "why": progress.topology_reason if progress else "",
            "edges": [[node, view.leader or "manager", round(rate)] for node, rate in sorted(rates.items())],
        },
        "choices": [
            {"topology": each.topology, "pace": each.pace, "batch_s": each.batch_s, "detail": each.detail,
             "chosen": each.chosen} for each in (progress.alternatives if progress else ())
        ],
        "plan": plain, "plan_changed": ["lease_batches", "topology", "until", "workers_max"],
        "evaluations": [
            {"version": each.version, "epoch": each.epoch, "seconds": round(each.seconds, 2),
             "examples": each.examples, "metrics": {m.name: m.value for m in each.metrics}}
            for each in told.evaluations[-500:]
        ],
        "events": [
            {"seq": each.seq, "at_s": round(each.at_s, 2), "kind": each.kind, "reason": each.reason}
            for each in told.events[-200:]
        ],
        "versions": [
            {"version": each.version, "number": each.number, "epoch": each.epoch, "accuracy": each.accuracy,
             "examples": each.examples, "at_s": round(each.at_s, 2), "reason": each.reason,
             "size_bytes": each.size_bytes, "metrics": {m.name: m.value for m in each.metrics}} for each in versions
        ],
        "served": {"version": view.served.version, "reason": view.served.reason, "hold": view.served.hold,
                   "verdict": view.served.verdict} if view.served else None,
    }  # fmt: skip


class Recorder:
    def __init__(self, operator: Operator, job: str) -> None:
        self._operator, self._job = operator, job
        self._bytes: dict[str, tuple[float, int]] = {}
        self._versions: tuple[PublishedView, ...] = ()
        self.began_s = time.time()
        self.first: State = {}
        self.last: State = {}
        self.patches: list[State] = []

    async def look(self) -> None:
        told = await self._operator.status(self._job)
        views = [view for view in told.jobs if view.job == self._job]
        served = views[0].served if views else None
        if served and served.version != (self._versions[-1].version if self._versions else 0):
            self._versions = (await self._operator.versions(self._job)).versions
        state = self._state(told, views[0])
        if not self.first:
            self.first = state
        else:
            self.patches.append(merge_patch(self.last, state))
        self.last = state

    def _state(self, told: Status, view: JobView) -> State:
        now_s = time.time()
        progress = view.progress
        workers = {each.node: each for each in progress.workers} if progress else {}
        rates = {}
        for name, worker in workers.items():
            moved = worker.bytes_up + worker.bytes_down
            at_s, before = self._bytes.get(name, (now_s - POLL_S, moved))
            rates[name] = max(0.0, (moved - before) / max(now_s - at_s, 0.1))
            if now_s - at_s > 5:
                self._bytes[name] = (now_s, moved)
            else:
                self._bytes.setdefault(name, (now_s, moved))
        version = progress.version if progress else 0
        nodes = {
            each.node: node_of(each, workers.get(each.node), version, "worker" if each.node in workers else "spare")
            for each in told.nodes
        }
        lost = [name for name, each in nodes.items() if each["state"] == "lost"]
        suspect = [name for name, each in nodes.items() if each["state"] == "suspect"]
        training = sum(each["state"] == "alive" and bool(each["job"]) for each in nodes.values())
        if lost or suspect:
            tone = "trouble" if lost else "attention"
            sentence = f"{' and '.join(lost or suspect)} {'is lost' if lost else 'is silent'}; training goes on with "
            sentence += f"{training}. Why: {nodes[(lost or suspect)[0]]['reason']}"
        else:
            tone = "ok"
            sentence = f"{plural(training, 'device')} of {len(nodes)} train {view.name}; nothing is wrong."
        job = job_of(view, told, self._versions, rates)
        job["tone"] = tone
        return {
            "seq": len(self.patches) + 1, "at_s": round(now_s, 2),
            "cluster": {"name": told.cluster, "version": "0.1.0", "tone": tone, "sentence": sentence,
                        "manager": "reachable", "since_s": round(now_s - self.began_s, 1)},
            "nodes": nodes, "jobs": {self._job: job},
        }  # fmt: skip


async def play(seconds: float, faults: dict[float, tuple[str, str]], out: Path) -> None:
    import shoal.trainer

    task = Path(shoal.trainer.__file__).with_name("demo_task.py")
    async with LocalCluster(workers=0) as cluster, Operator.open(cluster.home) as operator:
        await asyncio.gather(*(cluster.start_agent(name) for name in DEVICES))
        plan = {"lease_batches": 24, "topology": "auto", "workers_max": 5, "until": {"endless": True}}
        job = await operator.prepare_and_submit(str(task), name="digits", kwargs={}, plan=plan, on_progress=print)
        recorder, began_s, due = Recorder(operator, job), time.monotonic(), sorted(faults)
        while (now_s := time.monotonic() - began_s) < seconds:
            if due and now_s >= due[0]:
                what, name = faults[due.pop(0)]
                print(f"{now_s:.0f} s: {what} {name}", flush=True)
                if what == "kill":
                    os.kill(cluster.agents[name].pid, signal.SIGKILL)
                elif what == "start":
                    await cluster.start_agent(name)
                elif what == "freeze":
                    os.kill(cluster.agents[name].pid, signal.SIGSTOP)
                elif what == "thaw":
                    os.kill(cluster.agents[name].pid, signal.SIGCONT)
                else:
                    print(await operator.roll_back(job, reason=name))
            await recorder.look()
            await asyncio.sleep(max(0.0, POLL_S - (time.monotonic() - began_s - now_s)))
    document = {"first": recorder.first, "patches": recorder.patches}
    with gzip.GzipFile(out, "wb", mtime=0) as file:
        file.write(json.dumps(document, separators=(",", ":"), default=str).encode())
    print(f"{len(recorder.patches)} patches, {out.stat().st_size / 1000:.0f} kB")


FAULTS = {
    30.0: ("kill", "cellar-pi4"), 55.0: ("start", "cellar-pi4"), 75.0: ("freeze", "garage-pi3"),
    84.0: ("thaw", "garage-pi3"), 100.0: ("roll back", "wrong labels in the last scans"),
}  # fmt: skip

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--out", type=Path, default=RECORDING)
    asked = parser.parse_args()
    asyncio.run(play(asked.seconds, FAULTS, asked.out))
