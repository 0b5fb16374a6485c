"""An attack of a leader that lies to real agents over real sockets: ``tests/integration/lying_leader.py`` leads.

Its diary has what it worked out. A tally's update has a value that is not 0 in one place alone, so that the truth is
known.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from testbed.attacks.kit import ROOT, NotTried, Outcome, Site
from testbed.echo_job import echo_job

DEVICES, VALUES = 8, 200
#: Leases of an epoch: a tally has a place for each device in it (``own_tally_trainer``).
TURNS = 20
#: What the leader works out must be this far from each update that there can be.
FAR = 0.5
WAIT_S = 110.0

_TESTS = ROOT / "tests" / "integration"
_SPLIT = "shows devices different sets"


class LyingSite(Site):
    """A cluster whose leader is on the manager, and lies."""

    def __init__(self, folder: Path, lie: str, *, workers: int) -> None:
        search = os.pathsep.join(filter(None, (str(_TESTS), str(ROOT), os.environ.get("PYTHONPATH", ""))))
        options = ("--child-module", "own_tally_trainer", "--quiet")
        super().__init__(folder, workers=workers, agent_options=options, environment={"PYTHONPATH": search})
        self._lie = lie
        self._search = search
        self.diary = folder / "diary"

    async def _spawn(self, module: str, *arguments: str, log: str, capture: bool = False) -> asyncio.subprocess.Process:
        if module != "shoal.runtime.manager_main":
            return await super()._spawn(module, *arguments, log=log, capture=capture)
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / log).open("ab") as file:
            return await asyncio.create_subprocess_exec(
                *self._manager_command,
                *("-m", "lying_leader", self._lie, str(self.diary), *arguments, "--lead", "here", "--leash"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if capture else file,
                stderr=file,
                env={**os.environ, "PYTHONPATH": self._search, "PYTHONUNBUFFERED": "1"},
            )

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines of the diary."""
        text = self.diary.read_text(encoding="utf-8") if self.diary.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


async def split_sets_8(folder: Path, scale: float) -> Outcome:
    """Of eight real agents three are told sets of members of their own, and all are asked to open.

    Harm: the leader takes every mask off the words of one device, and has its update.
    """
    async with LyingSite(folder, "SplitSets", workers=DEVICES) as site:
        where = folder / "job"
        where.mkdir()
        (folder / "pace").write_text("0")
        job = dataclasses.replace(
            echo_job(where, values=VALUES, batches=60), name="tally", arguments={"pace": str(folder / "pace")}
        )
        plan = {"trust": "sealed(3, 0%, 30%)", "data": "local", "workers_min": DEVICES, "epoch_leases": TURNS}
        await site.operator.submit(job, plan={**plan, "momentum": 0.0, "until": {"epochs": 50}})

        async def is_over() -> bool:
            lines = site.lines()
            refused = sum(_SPLIT in str(line.get("reason", "")) for line in lines)
            # Without that check nobody refuses, and it has worked out two.
            return any("found" in line for line in lines) and (refused >= 3 or sum("found" in x for x in lines) >= 2)

        await site.until("the leader worked something out", is_over, limit_s=WAIT_S)
        lines = site.lines()
    return split_judged(lines)


def split_judged(lines: list[dict[str, Any]]) -> Outcome:
    """Judge what the leader worked out by the updates that there can be, one for each place."""
    found = [np.array(line["found"]) for line in lines if "found" in line]
    if not found:
        raise NotTried("the leader worked nothing out")
    error = min(float(np.abs(each - row).max()) for each in found for row in np.eye(VALUES))
    edges = max(int(line["edges"]) for line in lines if "found" in line)
    refused = sum(_SPLIT in str(line.get("reason", "")) for line in lines)
    told = f"{error:.2g} of the largest value off, with {edges} of {DEVICES - 1} edges known"
    return Outcome(error > FAR and not edges, f"the update of one is {told}; {refused} refusals")
