"""Drives the hub of one job, which asks for nothing but to be heard. It imports no trainer, and fetches nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

from shoal.errors import Misuse
from shoal.roles.actions import Action, End, Record
from shoal.runtime.log_lines import log_event, numbers_in
from shoal.runtime.role_host import RoleHost

log = logging.getLogger("shoal")


class HubDriver:
    def __init__(self, job: str, ended: Callable[[str, str], None]) -> None:
        """``ended``: is told the job and why."""
        self.job = job
        self._ended = ended
        #: A hub prepares nothing.
        self.preparing = ""

    async def perform(self, host: RoleHost, action: Action) -> None:
        self.act(host, action)

    def act(self, host: RoleHost, action: Action) -> bool:
        match action:
            case Record():
                log_event(log, action.kind, action.reason, job=action.job, **numbers_in(action.reason))
            case End():
                self._ended(self.job, action.reason)
            case _:
                raise Misuse(f"a hub does not ask for {type(action).__name__}")
        return True

    async def stop(self) -> None:
        """It has nothing to end."""

    def cpu_s(self) -> float:
        """It has no trainer: what it sums up, the agent sums up."""
        return 0.0

    def model_buffer(self, size_bytes: int) -> memoryview | None:
        """Nobody sends a model to a hub, but to its aggregator."""
        return None
