"""Marks for the replay bar: short texts of what happened between one state and the next. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.console.patch import Document

MARKS_MAX = 1000
_TEXT_CHARS = 200


def marks_between(old: Document, new: Document, at_s: float) -> Iterator[dict[str, Any]]:
    """Yield ``{"at_s", "kind", "text"}`` for each event."""

    def mark(kind: str, text: str) -> dict[str, Any]:
        return {"at_s": round(at_s, 2), "kind": kind, "text": text[:_TEXT_CHARS]}

    was, now = old.get("cluster", {}).get("manager"), new["cluster"]["manager"]
    if was is not None and was != now:
        yield mark(now, new["cluster"]["sentence"] if now == "unreachable" else "the manager answers again")
    for name, node in new["nodes"].items():
        before = old.get("nodes", {}).get(name)
        if before is None:
            if old:
                yield mark("joined", f"{name} joined")
        elif before["state"] != node["state"] and node["state"] in ("lost", "suspect"):
            yield mark(node["state"], f"{name} is {node['state']}: {node.get('reason', '')}")
        elif before["state"] == "lost" and node["state"] == "alive":
            yield mark("back", f"{name} is back")
    for name, job in new["jobs"].items():
        before = old.get("jobs", {}).get(name)
        if before is None:
            if old:
                yield mark("job", f"{job['name']} was submitted")
            continue
        yield from (mark(kind, f"{job['name']}: {text}") for kind, text in _turns(before, job))


def _turns(before: Document, job: Document) -> Iterator[tuple[str, str]]:
    if before["open"] and not job["open"]:
        yield job["state"], f"{job['state']}: {job['reason']}"
    if before["leader"] != job["leader"] and before["leader"]:
        yield "leader", f"{job['leader'] or 'nobody'} leads it, {before['leader']} did"
    if before["topology"]["kind"] != job["topology"]["kind"] and job["topology"]["kind"] and before["topology"]["kind"]:
        yield "topology", f"{job['topology']['kind']}: {job['topology'].get('why', '')}"
    seen = {view["version"] for view in before["evaluations"]}
    # The evaluations of a job that is seen for the first time are not new.
    new = job["evaluations"] if seen or len(job["evaluations"]) == 1 else ()
    for view in new:
        if view["version"] not in seen:
            figures = ", ".join(f"{name} {value:.4g}" for name, value in view["metrics"].items() if value is not None)
            yield "evaluation", f"version {view['version']:,}: {figures}"
    was, now = before.get("served", {}).get("version"), job.get("served", {}).get("version")
    if now is not None and was != now:
        yield "version", f"version {now:,} is served: {job['served']['reason']}"
