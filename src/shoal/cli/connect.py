"""How commands reach the cluster of a home directory: one place that says what it means when there is none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from shoal.cli.exits import NoCluster
from shoal.cli.options import hand_home_to_subcommand
from shoal.errors import Misuse

if TYPE_CHECKING:
    import typer

    from shoal.runtime.operator import Operator
    from shoal.wire.messages import JobView, Status

_T = TypeVar("_T")


@asynccontextmanager
async def operator_of(home: Path) -> AsyncIterator[Operator]:
    """An operator's connection to the cluster of this home, for as long as the block runs."""
    from shoal.runtime.operator import Operator

    async with AsyncExitStack() as stack:
        try:
            operator = await stack.enter_async_context(Operator.open(home))
        except Misuse as error:
            raise NoCluster(str(error)) from error
        yield operator


def with_operator(home: Path, ask: Callable[[Operator], Awaitable[_T]]) -> _T:
    """Connect, ask, disconnect: for commands that have no other reason for an event loop."""
    import asyncio

    async def asked() -> _T:
        async with operator_of(home) as operator:
            return await ask(operator)

    return asyncio.run(asked())


def status_to_list(
    context: typer.Context, home: Path, *, json: bool, part: Literal["jobs", "nodes"], ended_page: int = 0
) -> Status | None:
    """The status of the cluster, for a command that lists a part of it as a table. None: there is no table to print,
    since a subcommand follows, or since the part was printed as JSON. ``ended_page``: only this page of ended jobs."""
    if context.invoked_subcommand is not None:
        hand_home_to_subcommand(home)
        return None
    from shoal.cli import screen
    from shoal.cli.render.plain_json import to_plain

    told = with_operator(home, lambda operator: operator.ended_jobs(ended_page) if ended_page else operator.status())
    if json:
        screen.print_json(to_plain(getattr(told, part)))
        return None
    return told


async def ask_job(operator: Operator, wanted: str) -> tuple[JobView, Status]:
    """The job a person means, and a Status with its events and evaluations."""
    from shoal.cli.select_job import pick_job

    job = pick_job(await operator.jobs_called(wanted), wanted)
    status = await operator.status(job.job)
    return next((view for view in status.jobs if view.job == job.job), job), status
