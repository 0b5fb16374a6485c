"""What a person may do from the page: few commands of an operator, each with a reason, each logged with its session.

Only the command line can submit jobs, make tokens and revoke members: these put code on every device, or concern the
cluster's keys.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from shoal.cli.render.format import clean
from shoal.console.access import OPERATOR, BrowserSession
from shoal.console.asker import Asker
from shoal.errors import ShoalError
from shoal.runtime.operator import Operator

_log = logging.getLogger("shoal.console")

#: What `--allow` names, and the acts that each lets in.
ALLOWED: dict[str, tuple[str, ...]] = {
    "models": ("publish", "roll-back"),
    "devices": ("approve", "drain", "undrain"),
    "jobs": ("stop", "transfer"),
}
_GROUP_OF = {act: group for group, acts in ALLOWED.items() for act in acts}
#: Acts on a device; the others are on a job.
_ON_NODES = ALLOWED["devices"]

REASON_CHARS = 300
_KNOWN = {"do", "job", "node", "version", "reason"}

Command = Callable[[Operator], Awaitable[str]]


class ActDenied(ShoalError):
    """An act that was refused, with the HTTP status of the answer."""

    def __init__(self, reason: str, status: int = 403) -> None:
        super().__init__(reason)
        self.status = status


class Acts:
    def __init__(self, asker: Asker, allow: tuple[str, ...]) -> None:
        self._asker = asker
        self._allow = allow

    async def act(self, asked: Any, session: BrowserSession) -> str:
        """Carry out an act. Return a readable text of what was done."""
        if session.role != OPERATOR:
            raise ActDenied("you watch: a viewer's session can change nothing")
        if not isinstance(asked, Mapping) or not asked.keys() <= _KNOWN:
            raise ActDenied("an act is an object with do, job or node, version and reason", 400)
        do = asked.get("do")
        group = _GROUP_OF.get(do) if isinstance(do, str) else None
        if group is None or not isinstance(do, str):
            raise ActDenied("the console cannot do that; see `shoal --help`", 400)
        if group not in self._allow:
            raise ActDenied(f"this console may not {do}: start it with `shoal console --allow {group}`")
        reason, target = _text(asked, "reason"), _text(asked, "node" if do in _ON_NODES else "job")
        told = f"{clean(reason, REASON_CHARS)} (by the console, {session})"
        command = _command(do, target, told, asked)
        _log.info("%s %s, %s", do, clean(target, 80), told)
        done = clean(await self._asker.operate(command), 400)
        if do not in _ON_NODES:
            self._asker.watch(target)
        _log.info("done: %s", done)
        return done


def _command(do: str, target: str, reason: str, asked: Mapping[str, Any]) -> Command:
    """Return the operator's method that the command line also calls for this act."""
    match do:
        case "stop":
            return lambda operator: _stop(operator, target, reason)
        case "transfer":
            to = _text(asked, "node") if asked.get("node") else ""
            return lambda operator: operator.transfer(target, to)
        case "approve":
            return lambda operator: operator.approve_node(target)
        case "drain":
            return lambda operator: operator.drain_node(target, reason)
        case "undrain":
            return lambda operator: operator.undrain_node(target)
        case "publish":
            return lambda operator: operator.publish(target, reason)
        case _:
            version = asked.get("version", 0)
            if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < 1 << 53:
                raise ActDenied("version is the number of a published version, or 0 for the one before", 400)
            return lambda operator: operator.roll_back(target, version, reason=reason)


async def _stop(operator: Operator, job: str, reason: str) -> str:
    await operator.stop(job, reason)
    return f"stopping {job}: its last version is being saved"


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str) or not value.strip() or len(value) > 4 * REASON_CHARS:
        raise ActDenied(f"{name} is missing: say {'why, in some words' if name == 'reason' else 'which'}", 400)
    return value
