"""`shoal logs`: the journal's events of a job, or those about a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.runtime.operator import Operator
    from shoal.wire.messages import EventView, Status

#: How often a journal is asked for news, and how many jobs' journals are looked through for a device.
_ASK_EVERY_S = 0.5
_JOBS_MAX = 20
#: A job's last events are written down a moment after its end is told.
_SETTLE_S = 1.0

#: The journal of the cluster itself.
_CLUSTER = ""


def logs(
    of: Annotated[
        str,
        typer.Argument(
            metavar="NODE|JOB", help="A device's name; or a job's id, the start of it, or its name.", show_default=False
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens; Ctrl-C ends it.")] = False,
    lines: Annotated[int, typer.Option(min=1, max=50, help="How many of the latest events.")] = 50,
    home: Home = DEFAULT_HOME,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a line, as --log-format json does.")
    ] = False,
) -> None:
    """Print the events that the manager recorded of a job, or about a device, each with its date, level and reason.

    Example:  `shoal logs mnist-3fa2 -f`  or  `shoal logs attic-pi4 --lines 20`

    The log of a device's own agent stays on the device, unless this machine has it.
    """
    from shoal.cli.connect import with_operator

    async def ask(operator: Operator) -> None:
        from shoal.cli.select_job import pick_job

        status = await operator.status()
        node = of if any(view.node == of for view in status.nodes) else ""
        journal = _Journal(operator, status, node=node, json=json)
        jobs = journal.jobs_of_node() if node else [pick_job(await operator.jobs_called(of), of).job]
        await journal.print_latest(jobs, lines)
        if node:
            _own_log(node, home, lines, json=json)
        if follow:
            await journal.follow(jobs)

    with_operator(home, ask)


class _Journal:
    """Events of some journals, printed once each."""

    def __init__(self, operator: Operator, status: Status, *, node: str, json: bool) -> None:
        self._operator = operator
        self._status = status
        self._node = node
        self._json = json
        #: Job -> its latest event that was seen.
        self._seen: dict[str, int] = {}

    def jobs_of_node(self, *, open_only: bool = False) -> list[str]:
        """The cluster's own journal, and those of the latest jobs: a device is named in either."""
        jobs = [job.job for job in self._status.jobs if job.state.is_open or not open_only]
        return [_CLUSTER, *jobs[-_JOBS_MAX:]]

    async def print_latest(self, jobs: list[str], lines: int) -> None:
        from shoal.cli.journal_lines import in_order

        found = [(job, event) for job in jobs for event in await self._news(job)]
        for job, event in in_order(found)[-lines:]:
            self._print(job, event)

    async def follow(self, jobs: list[str]) -> None:
        """Until the job is over; for a device, until Ctrl-C."""
        import asyncio

        from shoal.cli.journal_lines import in_order
        from shoal.errors import Unreachable

        ended = False
        while True:
            # Once more after the end: the last events are written a moment later.
            await asyncio.sleep(_SETTLE_S if ended else _ASK_EVERY_S)
            try:
                found = [(job, event) for job in jobs for event in await self._news(job)]
            except Unreachable:
                # A manager that restarts is back in a moment; Ctrl-C ends the wait.
                continue
            for name, event in in_order(found):
                self._print(name, event)
            if ended:
                return
            if self._node:
                jobs = self.jobs_of_node(open_only=True)
            else:
                ended = all(job.state.is_ended for job in self._status.jobs)

    async def _news(self, job: str) -> list[EventView]:
        from shoal.cli.journal_lines import names_node

        told = await self._operator.status(job, self._seen.get(job, 0))
        self._seen[job] = max((event.seq for event in told.events), default=self._seen.get(job, 0))
        if job == _CLUSTER or not self._node:
            self._status = told
        return [event for event in told.events if not self._node or names_node(event, self._node)]

    def _print(self, job: str, event: EventView) -> None:
        from shoal.cli import screen
        from shoal.cli.journal_lines import event_json, event_line

        if self._json:
            screen.print_json(event_json(event, job=job, cluster=self._status.cluster))
        else:
            print(event_line(event, job=job), flush=True)


def _own_log(node: str, home: Path, lines: int, *, json: bool) -> None:
    """The agent's own lines, where they lie here; else where to look for them."""
    from shoal.cli import screen
    from shoal.cli.journal_lines import last_lines, own_logs
    from shoal.runtime.paths import default_home

    files = list(own_logs(home, default_home(), node))
    for file in files:
        screen.say(f"from {file}:")
        for line in last_lines(file, lines) if not json else ():
            print(line, flush=True)
    if not files:
        screen.say(
            f"The log of {node}'s agent is on {node}. Run there: journalctl -u shoal-agent -n {lines}"
            "   or look at the terminal of `shoal join`."
        )
