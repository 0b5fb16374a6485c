"""A device of the contest: the real agent and its trainer, with as much processor for each lease as was drawn for it.

Run as ``shoal.runtime.agent`` is, in a group of its own. While it does not train there is no limit, so that starting
and sending do not take minutes on the slowest.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.slo_trainers import PERIOD_US, REST_S
from shoal.runtime import agent
from shoal.trainer.host import TrainerHost, TrainResult

#: The file that says what this device is to do next, and the group that it runs in.
TURN_VARIABLE, GROUP_VARIABLE = "SHOAL_SLO_TURN", "SHOAL_SLO_GROUP"

_learn = TrainerHost.learn


def _limit(cores: float | None) -> None:
    quota_us = -1 if cores is None else round(cores * PERIOD_US)
    (Path(os.environ[GROUP_VARIABLE]) / "cpu.cfs_quota_us").write_text(str(quota_us))


async def learn_within_quota(self: TrainerHost, epoch: int, lease: int, examples: int, **options: Any) -> TrainResult:
    _limit(json.loads(Path(os.environ[TURN_VARIABLE]).read_text())["cores"])
    try:
        # What it took too much of before is paid back.
        await asyncio.sleep(REST_S)
        return await _learn(self, epoch, lease, examples, **options)
    finally:
        _limit(None)


def main() -> int:
    TrainerHost.learn = learn_within_quota  # type: ignore[method-assign]
    return agent.main()


if __name__ == "__main__":
    sys.exit(main())
