"""Marks for the replay bar: short texts of what happened between one state and the next. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.console.patch import Document

MARKS_MAX = 1000
_TEXT_CHARS = 200
_GONE = {"lost": "device.lost", "suspect": "device.suspected"}


def marks_between(old: Document, new: Document, at_s: float) -> Iterator[dict[str, Any]]:
    """Yield ``{"at_s", "kind", "text"}`` for each event."""

    def mark(kind: str, text: str) -> dict[str, Any]:
        return {"at_s": round(at_s, 2), "kind": kind, "text": text[:_TEXT_CHARS]}

    was, now = old.get("cluster", {}).get("manager"), new["cluster"]["manager"]
    if was is not None and was != now:
        is_lost = now == "unreachable"
        told = new["cluster"]["sentence"] if is_lost else "the manager answers again"
        yield mark("manager.lost" if is_lost else "manager.returned", told)
    for name, node in new["nodes"].items():
        before = old.get("nodes", {}).get(name)
        if before is None:
            if old:
                yield mark("device.connected", f"{name} joined")
        elif before["state"] != node["state"] and node["state"] in _GONE:
            yield mark(_GONE[node["state"]], f"{name}: {node.get('reason', '')}")
        elif before["state"] == "lost" and node["state"] == "alive":
            yield mark("device.returned", f"{name} is back")
    for name, job in new["jobs"].items():
        before = old.get("jobs", {}).get(name)
        if before is None:
            if old:
                yield mark("job.submitted", f"{job['name']} was submitted")
            continue
        yield from (mark(kind, f"{job['name']}: {text}") for kind, text in _turns(before, job))


def _turns(before: Document, job: Document) -> Iterator[tuple[str, str]]:
    if before["open"] and not job["open"]:
        yield f"job.{job['state']}", job["reason"]
    if before["leader"] != job["leader"] and before["leader"]:
        yield "leader.appointed", f"{job['leader'] or 'nobody'} leads it, {before['leader']} did"
    if before["topology"]["kind"] != job["topology"]["kind"] and job["topology"]["kind"] and before["topology"]["kind"]:
        yield "topology.changed", f"{job['topology']['kind']}: {job['topology'].get('why', '')}"
    seen = {view["version"] for view in before["evaluations"]}
    # The evaluations of a job that is seen for the first time are not new.
    new = job["evaluations"] if seen or len(job["evaluations"]) == 1 else ()
    for view in new:
        if view["version"] not in seen:
            figures = ", ".join(f"{name} {value:.4g}" for name, value in view["metrics"].items() if value is not None)
            yield "job.evaluated", f"version {view['version']:,}: {figures}"
    was, now = before.get("served", {}).get("version"), job.get("served", {}).get("version")
    if now is not None and was != now:
        yield "version.published", f"version {now:,} is served: {job['served']['reason']}"
