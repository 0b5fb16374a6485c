"""What `shoal console` keeps of an hour: its own state, feed and recording, fed with made-up statuses of many devices.

Every device works on one job. Between two looks, some of them change what they do, and one event comes.

    state_kb, patch_kb     one state, and what one look adds to it
    look_s                 processor time to make both
    states_mb, spans_mb    what is kept at the end of the hour
    rss_growth_mb          resident memory at the end of the hour, less at its beginning

    python -m benchmarks.console_hour --json
    python -m benchmarks.console_hour --quick --json     # six minutes of it
"""

from __future__ import annotations

import argparse
import os
import time

from shoal.console.feed import Feed, encoded
from shoal.console.patch import diff
from shoal.console.state import Look, state_of
from shoal.plan import Plan
from shoal.states import JobState, WorkerState
from shoal.wire.messages import EventView, Facts, JobView, NodeView, Progress, Status, WorkerView
from testbed.processes import memory_mb
from testbed.results import finish, say

LOOK_EVERY_S = 2.0
EVENTS_TOLD = 50
#: Of one change of a device: its moment and its activity.
CHANGE_BYTES = 9


def status_at(at_s: float, batches: list[int], states: list[WorkerState], events: list[EventView]) -> Status:
    names = [f"device-{number:04}" for number in range(len(states))]
    workers = tuple(
        WorkerView(node=name, state=state, batches=done, lease_s=0.5, bytes_up=4000 * done, bytes_down=4000 * done)
        for name, state, done in zip(names, states, batches, strict=True)
    )
    progress = Progress(job="job-1", term=1, state="training", version=sum(batches), workers=workers)
    facts = Facts(host="10.0.0.7", arch="aarch64", cpus=4, memory_mb=4096, python="3.11.2", torch="2.13.0")
    return Status(
        cluster="hour",
        manager="manager",
        nodes=tuple(NodeView(node=name, state="alive", job="job-1", facts=facts, heard_s=0.5) for name in names),
        jobs=(JobView(job="job-1", name="hour", state=JobState.RUNNING, plan=Plan(), progress=progress),),
        events=tuple(events[-EVENTS_TOLD:]),
    )


def measure(devices: int, changing: int, minutes: float) -> dict[str, float]:
    states, batches = [WorkerState.WORKING] * devices, [0] * devices
    events: list[EventView] = []
    feed = Feed()
    before_mb, looks = memory_mb(os.getpid()), int(minutes * 60 / LOOK_EVERY_S)
    made_s, patch_bytes = 0.0, 0
    for look in range(looks):
        at_s = 1e9 + look * LOOK_EVERY_S
        for number in ((look * changing + each) % devices for each in range(changing)):
            is_working = states[number] is WorkerState.WORKING
            states[number] = WorkerState.DELIVERING if is_working else WorkerState.WORKING
            batches[number] += 1
        reason = f"device-{look % devices:04}: its lease took longer than expected"
        events.append(EventView(seq=look, at_s=at_s, kind="late", reason=reason))
        status, began_s, last = status_at(at_s, batches, states, events), time.process_time(), feed.state
        feed.take(state_of(Look(status=status, at_s=at_s)), at_s)
        made_s += time.process_time() - began_s
        patch_bytes += len(encoded(diff(last, feed.state))) if last else 0
        if look % 300 == 299:
            say(f"{(look + 1) * LOOK_EVERY_S / 60:.0f} of {minutes:.0f} minutes")
    return {
        "devices": devices,
        "changing": changing,
        "minutes": minutes,
        "state_kb": len(encoded(feed.state)) / 1e3,
        "patch_kb": patch_bytes / max(1, looks - 1) / 1e3,
        "look_s": made_s / looks,
        "states_mb": feed.recording.size_bytes / 1e6,
        "spans_mb": feed.lanes.changes * CHANGE_BYTES / 1e6,
        "rss_growth_mb": memory_mb(os.getpid()) - before_mb,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--changing", type=int, default=400, help="devices that change between two looks")
    parser.add_argument("--quick", action="store_true", help="six minutes instead of an hour")
    parser.add_argument("--json", action="store_true", help="accepted for uniformity: the last line always is JSON")
    given = parser.parse_args()
    finish(measure(given.devices, min(given.changing, given.devices), 6.0 if given.quick else 60.0))


if __name__ == "__main__":
    main()
