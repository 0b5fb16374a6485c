"""A real manager whose leaders size work by a contest of profilers. Run as ``shoal.runtime.manager_main`` is.

What the contest is, a file says that the benchmark wrote; every task that is done is a line of another.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.slo_contest import Contest, Setting, Turn, write_turn
from benchmarks.slo_fleet import draw_fleet
from benchmarks.slo_loop import RAMP_MOST, Task, contenders
from shoal.plan import Plan
from shoal.roles.leader import local_data
from shoal.runtime import manager_main
from shoal.scheduling.requests import Budget, Intake
from shoal.scheduling.steering import Steering

FOLDER_VARIABLE = "SHOAL_SLO_FOLDER"
SETTING_FILE, TASKS_FILE, OVER_FILE = "setting.json", "tasks.jsonl", "over"

#: Those that are asked by real agents. Each costs every device a task a round.
ASKED = ("ours", "iprof", "maui")


def contest_in(folder: Path) -> Contest:
    told: dict[str, Any] = json.loads((folder / SETTING_FILE).read_text())
    requests = told["requests"]
    setting = Setting(
        members=draw_fleet(told["seed"], told["devices"], requests=requests),
        teachers=draw_fleet(told["seed"], told["teachers"], requests=RAMP_MOST, name="teacher"),
        requests=requests,
        budget=told["slo_s"],
        first=told["first"],
        steady=told["steady"],
    )
    profilers = contenders(within=told["within"])

    def tell(device: str, turn: Turn) -> None:
        write_turn(folder, device, turn)

    def record(kind: str, task: Task) -> None:
        with (folder / TASKS_FILE).open("a") as file:
            file.write(json.dumps({"profiler": kind, **asdict(task)}) + "\n")
        if contest.is_over:
            (folder / OVER_FILE).write_text(str(contest.taught))

    contest = Contest(setting, {name: profilers[name] for name in ASKED}, tell=tell, record=record)
    return contest


def main() -> int:
    folder = Path(os.environ[FOLDER_VARIABLE])

    def intake(plan: Plan) -> Intake:
        # As a leader's own, but for the profiler: whoever asks is lent work.
        budget = Budget(profiler=contest_in(folder), budget=plan.budget_s)
        return Intake({"time": budget}, steering=Steering(per_s=1e6))

    local_data._intake = intake
    return manager_main.main()


if __name__ == "__main__":
    sys.exit(main())
