"""Keeps an agent's certificate fresh: knows when, and has another process do it. Knows no jobs and no sessions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from pathlib import Path

from shoal.errors import Refused
from shoal.identity.enrolled import Enrolled
from shoal.net.base import SHUT_OUT
from shoal.net.renewal import has_lapsed, is_due
from shoal.trainer.spawn import child

log = logging.getLogger("shoal")

#: How often to look, and at the same time how long to wait after an attempt that failed: this share of a certificate's
#: life, within these bounds.
LOOK_SHARE = 1 / 20
LOOK_LEAST_S = 0.2
LOOK_MOST_S = 3600.0

#: The same where the times of a certificate are not known.
LOOK_UNKNOWN_S = 60.0

#: A device that does not know the time cannot know that its certificate ran out. When it has not been let in for this
#: long, it tries whether that is the reason.
LOCKED_OUT_S = 60.0

ATTEMPT_TIMEOUT_S = 60.0


class Renewal:
    """``member`` is who the agent is at its next connection."""

    def __init__(self, folder: Path, member: Enrolled) -> None:
        self._folder = folder
        self.member = member
        #: How far the manager's clock is ahead of ours, once it was told.
        self._ahead_s: float | None = None
        self._turned_away_s: float | None = None
        self._tried_s = float("-inf")

    def heard(self, manager_time_s: float) -> None:
        """The manager let us in, and told the time."""
        self._turned_away_s = None
        if manager_time_s > 0:
            self._ahead_s = manager_time_s - time.time()

    def reached(self, endpoint: str, managers: tuple[str, ...]) -> None:
        """A manager was reached here, and told where others are: this device looks there first when it starts again.
        Writes a file if that is news."""
        if managers and (self.member.manager_endpoint, self.member.managers) != (endpoint, managers):
            self.member = replace(self.member, manager_endpoint=endpoint, managers=managers)
            try:
                self.member.save_manager(self._folder)
            except OSError as error:
                log.warning("where the cluster's managers are is known until this agent ends: %s", error)

    async def run(self) -> None:
        """Renew on time, until cancelled."""
        while True:
            await asyncio.sleep(self._look_every_s)
            # Before the manager told the time ours may be that of 1970: then nothing is due, and nothing is sure.
            if self._ahead_s is not None and is_due(self.member.identity, now_s=self._now_s):
                with contextlib.suppress(Refused):
                    await self._attempt()

    async def not_let_in(self) -> None:
        """A connection could not be made. Raises Refused if that is for good."""
        now_s = time.monotonic()
        if self._turned_away_s is None:
            self._turned_away_s = now_s
        locked_out = now_s - self._turned_away_s >= LOCKED_OUT_S
        if locked_out or has_lapsed(self.member.identity, now_s=self._now_s):
            await self._attempt()

    @property
    def _now_s(self) -> float:
        """By the manager's clock, as far as we know."""
        return time.time() + (self._ahead_s or 0.0)

    @property
    def _look_every_s(self) -> float:
        identity = self.member.identity
        if not identity.expires_s:
            return LOOK_UNKNOWN_S
        return min(max((identity.expires_s - identity.issued_s) * LOOK_SHARE, LOOK_LEAST_S), LOOK_MOST_S)

    async def _attempt(self) -> None:
        now_s = time.monotonic()
        if now_s - self._tried_s < self._look_every_s:
            return
        self._tried_s = now_s
        code, told = await self._renew()
        if code == 0:
            self.member = Enrolled.load(self._folder)
            log.info("the certificate of this device was renewed: %s", told)
        elif SHUT_OUT in told:
            raise Refused(told)
        else:
            log.warning("the certificate of this device could not be renewed: %s", told)

    async def _renew(self) -> tuple[int, str]:
        """In a process of its own, whose memory is given back; its exit code and its one line."""
        async with child(
            *("shoal.net.renewal", str(self._folder)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        ) as process:
            try:
                said, _ = await asyncio.wait_for(process.communicate(), ATTEMPT_TIMEOUT_S)
            except TimeoutError:
                return 3, f"no answer within {ATTEMPT_TIMEOUT_S:g} s"
        lines = said.decode(errors="replace").strip().splitlines()
        return process.returncode or 0, lines[-1] if lines else "nothing was said"
