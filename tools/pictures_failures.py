"""Three failures on one time axis: recorded once from a simulation, drawn from the recording.

``python tools/pictures_failures.py`` plays the simulation again and writes the recording.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pictures_canvas import Canvas

if TYPE_CHECKING:
    from shoal.sim.observe import Mark, Step

ROOT = Path(__file__).resolve().parent.parent
RECORDING = ROOT / "tools" / "recordings" / "failures.json"
DEVICES = 4
LEASE_S, END_S = 0.8, 56.0
#: A worker, the leader and the manager's cable, one after the other.
FAULTS = (
    "crash(w3, at=9, restart_s=22)\n"  # back at 31 s
    "crash(leader, at=20, restart_s=14)\n"  # back at 34 s
    "partition(home, at=40, for_s=8)"
)
_LEFT, _RIGHT, _LANE_PX = 132, 24, 30


def drawn() -> str:
    """Return the picture: a lane per machine, and under them the versions made and the version saved."""
    told: dict[str, Any] = json.loads(RECORDING.read_text(encoding="utf-8"))
    canvas = Canvas(
        900,
        486,
        title="A worker, the leader and the manager fail, and training continues",
        says="A time axis of 56 seconds with four devices and the manager; versions are made throughout, and the saved"
        " version follows.",
    )
    canvas.text(24, 32, "What happens when machines fail", bold=True, size=16)
    canvas.text(24, 52, "A simulation of four devices, each of which can lead, with the deployed code", "dim", size=12)
    lanes = ["home", *(f"w{number}" for number in range(1, DEVICES + 1))]
    for place, node in enumerate(lanes):
        _lane(canvas, 92 + place * _LANE_PX, node, told)
    _versions(canvas, told, top=270, bottom=390)
    for at_s, number in ((told["off"]["w3"][0][0], 1), (told["off"][told["led"][0][1]][0][0], 2), (told["cut"][0], 3)):
        canvas.path([(_x(at_s), 74), (_x(at_s), 392)], "cut")
        canvas.dot(_x(at_s), 70, 9, "strong")
        canvas.text(_x(at_s), 74, str(number), "on", size=11, at="middle", bold=True)
    for number, line in enumerate(_notes(told), 1):
        canvas.dot(34, 430 + 20 * (number - 1), 8, "strong")
        canvas.text(34, 434 + 20 * (number - 1), str(number), "on", size=11, at="middle", bold=True)
        canvas.text(50, 434 + 20 * (number - 1), line, size=12)
    return canvas.written()


def _notes(told: dict[str, Any]) -> list[str]:
    suspect_s = told["expired_s"] - told["off"]["w3"][0][0]
    (_, first, _), (again_s, second, version) = told["led"][0], told["led"][1]
    away_s = again_s - told["off"][first][0][0]
    cut_from, cut_to = told["cut"]
    during = [each for at_s, each in told["made"] if cut_from < at_s < cut_to]
    return [
        f"w3 loses power: after {suspect_s:.1f} s its lease expires, and another device gets its batch.",
        f"{first}, the leader, loses power: {away_s:.1f} s later {second} leads, from saved version {version}.",
        f"The manager is cut off: {second} leads on and makes {len(during)} versions, which are saved once it is back.",
    ]


def _lane(canvas: Canvas, y: float, node: str, told: dict[str, Any]) -> None:
    canvas.text(24, y + 14, "manager" if node == "home" else node, bold=True, size=13)
    canvas.box(_LEFT, y, _x(END_S) - _LEFT, 20, "plain", round_=3)
    for from_s, to_s in told["off"].get(node, []):
        canvas.box(_x(from_s), y, _x(to_s) - _x(from_s), 20, "band", round_=3)
        canvas.text(_x(from_s) + 10, y + 14, "no power", "warn", size=11)
    if node == "home":
        from_s, to_s = told["cut"]
        canvas.box(_x(from_s), y, _x(to_s) - _x(from_s), 20, "band", round_=3)
        canvas.text(_x(from_s) + 10, y + 14, "cut off", "warn", size=11)
        canvas.text(_LEFT + 10, y + 14, "saves versions", "dim", size=11)
    for at_s, name in told["leases"]:
        if name == node:
            end_s = min([at_s + LEASE_S, END_S, *(off for off, _ in told["off"].get(node, []) if off > at_s)])
            canvas.box(_x(at_s), y + 4, max(_x(end_s) - _x(at_s) - 1.5, 1), 12, "busy", round_=1.5)
    for place, (from_s, name, _) in enumerate(told["led"]):
        if name == node:
            end_s = told["led"][place + 1][0] if place + 1 < len(told["led"]) else END_S
            end_s = min([end_s, *(off for off, _ in told["off"].get(node, []) if off > from_s)])
            canvas.box(_x(from_s), y + 17, _x(end_s) - _x(from_s), 4, "lead", round_=2)


def _versions(canvas: Canvas, told: dict[str, Any], *, top: float, bottom: float) -> None:
    most = max(version for _, version in told["made"])

    def y(version: int) -> float:
        return bottom - (bottom - top) * version / float(most)

    for second in range(0, int(END_S) + 1, 10):
        canvas.path([(_x(second), top), (_x(second), bottom)], "hair")
        canvas.text(_x(second), bottom + 16, f"{second} s", "dim", size=11, at="middle")
    canvas.text(24, top + 14, "version made", "c1", size=12, bold=True)
    canvas.text(24, top + 32, "version saved", "c2", size=12, bold=True)
    canvas.box(24, top + 50, 14, 8, "busy", round_=1.5)
    canvas.text(44, top + 58, "a lease", "dim", size=12)
    canvas.box(24, top + 70, 14, 4, "lead", round_=2)
    canvas.text(44, top + 76, "leads", "dim", size=12)
    for at_s, version in told["made"]:
        canvas.path([(_x(at_s), y(version) - 5), (_x(at_s), y(version) + 5)], "one", width=1.5)
    points: list[tuple[float, float]] = []
    for at_s, version in told["saved"]:
        if points:
            points.append((_x(at_s), points[-1][1]))
        points.append((_x(at_s), y(version)))
    points.append((_x(END_S), points[-1][1]))
    canvas.path(points, "two", width=2)


def _x(at_s: float) -> float:
    return _LEFT + (900 - _LEFT - _RIGHT) * min(at_s, END_S) / END_S


class _Watch:
    """Collect from a simulation the facts that the picture shows."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {"led": [], "leases": [], "made": [], "saved": [], "off": {}, "expired_s": 0.0}

    def step(self, step: Step) -> None:
        from shoal.roles.actions import Record, Send
        from shoal.wire.messages import Work

        for action in step.actions:
            if isinstance(action, Record) and action.kind == "lease.expired" and not self.told["expired_s"]:
                self.told["expired_s"] = round(step.at_s, 2)
            if step.role != "leader" or not isinstance(action, Send) or not isinstance(action.message, Work):
                continue
            version = action.message.version
            if not self.told["made"] or version != self.told["made"][-1][1]:
                self.told["made"].append([round(step.at_s, 2), version])

    def mark(self, mark: Mark) -> None:
        at_s = round(mark.at_s, 2)
        if mark.kind == "led":
            self.told["led"].append([at_s, mark.node, max(0, mark.facts["version"])])
        elif mark.kind == "trains":
            self.told["leases"].append([at_s, mark.node])
        elif mark.kind == "durable":
            self.told["saved"].append([at_s, mark.facts["save"].version])
        elif mark.kind == "power off":
            self.told["off"].setdefault(mark.node, []).append([at_s, END_S])
        elif mark.kind == "started" and mark.node in self.told["off"]:
            self.told["off"][mark.node][-1][1] = at_s


def _record() -> None:
    from shoal.learning.layout import Layout
    from shoal.plan import Plan, Until
    from shoal.sim.devices import Build
    from shoal.sim.fault_text import parse
    from shoal.sim.inflict import Inflicter
    from shoal.sim.jobs import system_job
    from shoal.sim.network import AccessLink
    from shoal.sim.rates import Steady
    from shoal.sim.world import Settings, World

    rate = Steady(1e6)
    build = Build(
        kind="board",
        seconds_per_gmac=0.0,
        seconds_per_batch=LEASE_S,
        memory_mb=1024,
        line=AccessLink(up=rate, down=rate, latency_s=0.005),
    )
    plan = Plan(batch_size=100, workers_min=1, workers_max=DEVICES, checkpoint_every_s=2.0, until=Until(epochs=9))
    job = system_job(plan, Layout.of([("weight", (64, 64), "parameter")]), examples=20_000, start_s=0.5)
    settings = Settings(
        seed=1,
        builds=[build] * DEVICES,
        home_line=AccessLink(up=rate, down=rate, latency_s=0.001),
        jobs=[dataclasses.replace(job, submit_s=1.0)],
        arrive_within_s=0.0,
        prefers_devices=True,
    )
    watch, world = _Watch(), World(settings)
    faults = parse(FAULTS)
    inflicter = Inflicter(world, faults)
    world.observers += [watch, inflicter]
    inflicter.begin()
    world.begin()
    world.run(limit_s=END_S, events_max=500_000)
    watch.told["cut"] = [40.0, 48.0]
    rows = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in watch.told.items()]
    RECORDING.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    _record()
