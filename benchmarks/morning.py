"""The morning peak: does load at a leader stay flat while a fleet wakes up, with pace steering and without?

100,000 devices that are there when recorded phones were, for a day. Each asks for work once it is there, trains for a
minute, give or take, comes back with its update and is lent more; with ``requests_per_s`` the leader tells those above
that when to come again. A day of that many devices is more than ten million requests, and is played twice: too many for
the whole roles, with their messages, links and reports. So the fleet asks the deployed ``Intake`` with its ``Steering``
in a small loop of events (``morning_loop``); and ``--roles`` devices go through the deployed roles in the simulator
beside it, to see that both come to the same.

Run as ``python -m benchmarks.morning [--devices N] [--quick] [--plot PATH] --json``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import morning_loop, morning_roles
from benchmarks.morning_fleet import FIRST_HALF_HOUR, HALF_HOURS, STEP_S, Fleet, fleet, recorded
from benchmarks.morning_loop import Course
from shoal.sim.rng import Rng
from testbed.results import finish, say

DEVICES, QUICK_DEVICES = 100_000, 3_000
#: Fleets for the lesser questions.
SWEEP_DEVICES, ROLES_DEVICES = 5_000, 2_000

#: What a lease takes, model and update included, and the deviation of its logarithm.
LEASE_S, SPREAD = 60.0, 0.3

#: Of the requests that the fleet would make without steering, on the day's average: what a leader aims at that is built
#: for the average and not for the peak.
AIM = 1.0
SWEEP_AIMS = (0.5, 0.75, 1.25)

#: The first minutes are not counted: the fleet was not there before.
SETTLED_MIN = 30

#: An hour and a half from midnight, in which more and more devices are there; and an aim that is below all of it.
ROLES_FIRST, ROLES_HALF_HOURS, ROLES_AIM = 96, 3, 0.6


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Requests a second in each minute, in three figures."""

    mean: float
    p99: float
    peak: float

    @property
    def peak_over_mean(self) -> float:
        return self.peak / self.mean


def load(asked: np.ndarray, minutes: np.ndarray) -> Load:
    """Over those minutes, counted from when the fleet has settled."""
    per_s = asked[SETTLED_MIN:][minutes] / 60
    return Load(mean=float(per_s.mean()), p99=float(np.percentile(per_s, 99)), peak=float(per_s.max()))


def busy(asked: np.ndarray, *, within_min: int = 30) -> np.ndarray:
    """In which minutes more than the mean is asked, by half hours: of the run without steering, the peak."""
    per_min = asked[SETTLED_MIN:].astype(float)
    halves = np.array([part.mean() for part in np.array_split(per_min, max(1, len(per_min) // within_min))])
    minutes: np.ndarray = np.repeat(
        halves > per_min.mean(), [len(part) for part in np.array_split(per_min, len(halves))]
    )
    return minutes


def draw(devices: int, *, seed: int, first: int = FIRST_HALF_HOUR, half_hours: int = HALF_HOURS, shift_s: int) -> Fleet:
    return fleet(recorded(), devices, rng=Rng(seed), first=first, half_hours=half_hours, shift_s=shift_s)


def free_per_s(of: Fleet) -> float:
    """Requests a second of a fleet that is not steered, on average."""
    mean_lease_s = LEASE_S * float(np.exp(SPREAD**2 / 2))
    return of.available_s / of.window_s / mean_lease_s


def run(of: Fleet, *, per_s: float, seed: int, lease_s: float = LEASE_S) -> Course:
    began_s = time.perf_counter()
    course = morning_loop.play(of, per_s=per_s, lease_s=lease_s, spread=SPREAD, rng=Rng(seed))
    asked, took_s = int(course.asked.sum()), time.perf_counter() - began_s
    aim = f"at {per_s:.1f} a second" if per_s else "without steering"
    say(f"{len(of.spans):,} devices {aim}: {asked:,} requests, {course.done:,} leases done; {took_s:.0f} s")
    return course


def figures(name: str, course: Course, of: Fleet, peak_minutes: np.ndarray) -> dict[str, Any]:
    day = load(course.asked, np.full(len(peak_minutes), True))
    morning = load(course.asked, peak_minutes)
    asked = int(course.asked.sum())
    return {
        f"peak_over_mean_{name}": day.peak_over_mean,
        f"mean_per_s_{name}": day.mean,
        f"p99_per_s_{name}": day.p99,
        f"peak_per_s_{name}": day.peak,
        f"morning_peak_over_mean_{name}": morning.peak_over_mean,
        f"morning_mean_per_s_{name}": morning.mean,
        f"morning_p99_per_s_{name}": morning.p99,
        f"morning_peak_per_s_{name}": morning.peak,
        f"worst_second_{name}": course.worst_second,
        f"leases_{name}": course.done,
        f"leases_lost_{name}": course.lost,
        f"appointments_missed_{name}": course.missed,
        f"requests_{name}": asked,
        f"refused_share_{name}": 1 - int(course.lent.sum()) / asked,
        f"used_share_{name}": course.trained_s / of.available_s,
        f"took_part_{name}": course.took_part,
    }


def sweep(devices: int, *, seed: int) -> list[dict[str, Any]]:
    """Other aims; and a fleet in which all that come in a half hour come at once."""
    rows = []
    for shift_s, aims in ((STEP_S, (0.0, AIM, *SWEEP_AIMS)), (0, (0.0, AIM))):
        of = draw(devices, seed=seed, shift_s=shift_s)
        minutes = np.full(int(of.window_s // 60) - SETTLED_MIN, True)
        leases = 0
        for aim in aims:
            course = run(of, per_s=aim * free_per_s(of), seed=seed)
            leases = leases or course.done
            day = load(course.asked, minutes)
            rows.append(
                {
                    "aim": aim,
                    "at_once": shift_s == 0,
                    "peak_over_mean": round(day.peak_over_mean, 3),
                    "peak_over_free_mean": round(day.peak / free_per_s(of), 3),
                    "worst_second_over_free_mean": round(course.worst_second / free_per_s(of), 2),
                    "leases": round(course.done / leases, 3),
                    "took_part": course.took_part,
                }
            )
    return rows


def cross_check(devices: int, *, seed: int) -> dict[str, Any]:
    """The loop and the roles, side by side."""
    of = draw(devices, seed=seed, first=ROLES_FIRST, half_hours=ROLES_HALF_HOURS, shift_s=STEP_S)
    result: dict[str, Any] = {"roles_devices": devices}
    for name, aim in (("without", 0.0), ("with", ROLES_AIM)):
        per_s = aim * free_per_s(of)
        seen = morning_roles.play(of, per_s=per_s, lease_s=LEASE_S, rng=Rng(seed), seed=seed)
        # Most leases of the roles take less than their budget, as they should: the loop's take what those took.
        looped = run(of, per_s=per_s, seed=seed, lease_s=seen.lease_s)
        counted = slice(SETTLED_MIN, None)
        lent = max(1, int(seen.lent[counted].sum()))
        result |= {
            f"roles_lease_s_{name}": seen.lease_s,
            f"roles_requests_per_lease_{name}": int(seen.asked[counted].sum()) / lent,
            f"loop_requests_per_lease_{name}": int(looped.asked[counted].sum()) / int(looped.lent[counted].sum()),
            f"roles_per_s_{name}": float(seen.asked[counted].mean() / 60),
            f"loop_per_s_{name}": float(looped.asked[counted].mean() / 60),
            f"roles_waits_per_lease_{name}": int(seen.waits[counted].sum()) / lent,
        }
    return result


def plot(path: Path, without: Course, steered: Course, *, aim: float) -> None:
    """Requests a second, minute by minute, with and without."""
    # Here, because only this needs matplotlib.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.6))
    axes = figure.add_subplot()
    first_h = FIRST_HALF_HOUR / 2 % 24
    for course, colour, label in ((without, "#b03030", "without"), (steered, "#1f5fa8", "with pace steering")):
        hours = first_h + np.arange(SETTLED_MIN, len(course.asked)) / 60
        axes.plot(hours, course.asked[SETTLED_MIN:] / 60, color=colour, linewidth=0.8, label=label)
    axes.axhline(aim, color="#777777", linestyle=":", label="requests_per_s of the plan")
    ticks = np.arange(first_h, first_h + 24.1, 3)
    axes.set_xticks(ticks, [f"{int(tick) % 24}:00" for tick in ticks])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("requests a second at the leader")
    axes.set_xlabel("time of day in the record")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=0, help=f"how many; {DEVICES:,} unless --quick")
    parser.add_argument("--aim", type=float, default=AIM, help="requests_per_s, of what the fleet would ask on average")
    parser.add_argument("--roles", type=int, default=-1, help=f"devices on the roles; {ROLES_DEVICES:,}, 0 if --quick")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_DEVICES:,} devices, nothing beside them")
    parser.add_argument("--plot", type=Path, help="draw requests by minute into this PNG")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    given = parser.parse_args()
    of = draw(given.devices or (QUICK_DEVICES if given.quick else DEVICES), seed=given.seed, shift_s=STEP_S)
    per_s = given.aim * free_per_s(of)
    without, steered = run(of, per_s=0.0, seed=given.seed), run(of, per_s=per_s, seed=given.seed)
    if given.plot is not None:
        plot(given.plot, without, steered, aim=per_s)
    minutes = busy(without.asked)
    result = {
        "devices": len(of.spans),
        "available_share": of.available_s / of.window_s / len(of.spans),
        "requests_per_s": per_s,
        "morning_hours": float(minutes.sum() / 60),
        **figures("with", steered, of, minutes),
        **figures("without", without, of, minutes),
        "leases_kept": steered.done / without.done,
    }
    if not given.quick:
        result["sweep"] = sweep(SWEEP_DEVICES, seed=given.seed)
    if roles := given.roles if given.roles >= 0 else (0 if given.quick else ROLES_DEVICES):
        result |= cross_check(roles, seed=given.seed)
    finish(result)


if __name__ == "__main__":
    main()
