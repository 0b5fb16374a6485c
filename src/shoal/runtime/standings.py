"""The standing of members: what follows here when an operator approves, drains, labels or revokes one.

The decision was made at this manager or at another one of the cluster, and is durable before it has consequences.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shoal.errors import ShoalError
from shoal.roles.events import MemberHeld
from shoal.runtime.manager_memory import ManagerMemory
from shoal.runtime.member_register import HELD, MemberRegister, RegisterCommand
from shoal.wire.messages import ApproveNode, DrainNode, LabelNode, Message, RevokeNode, UndrainNode

log = logging.getLogger("shoal")

#: How often a manager reads what others decided about members.
EVERY_S = 1.0


class Standings:
    def __init__(
        self,
        register: MemberRegister,
        memory: ManagerMemory,
        *,
        tell: Callable[[MemberHeld], object],
        disconnect: Callable[[str, str], object],
        note: Callable[[str, str, str], object],
    ) -> None:
        """``tell``: tells the roles that give members work. ``disconnect``: ends a node's sessions, for a reason.
        ``note``: records an event of a job, by its kind and its reason."""
        self._register = register
        self._memory = memory
        self._tell = tell
        self._disconnect = disconnect
        self._note = note

    async def run(self) -> None:
        """Until cancelled: act on what other managers decided about members."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.catch_up()

    async def catch_up(self) -> None:
        try:
            changed = await self._register.catch_up()
        except ShoalError as error:
            log.debug("members are not up to date: %s", error)
            return
        for member in changed:
            if member.state == "revoked":
                self._expel(member.node, self._register.why_revoked(member))
            else:
                self.apply(member.node)
        if any(member.state == "revoked" for member in changed):
            await self._memory.on_revoked()

    async def carry_out(self, command: RegisterCommand, *, by: str) -> Message:
        """Carry out an operator's command about members. Return the answer once all of it is durable."""
        answer = await asyncio.to_thread(self._register.answer, command, by=by)
        if isinstance(command, ApproveNode | DrainNode | UndrainNode | LabelNode):
            self._register.refresh(command.node)
            self.apply(command.node)
        elif isinstance(command, RevokeNode):
            self._revoke(command.node)
            await self._memory.on_revoked()
        return answer

    def _revoke(self, name: str) -> None:
        node = self._register.refresh(name)
        if node is None:
            return
        for gone in (node, *self._register.shut_out_with(node.node)):
            reason = self._register.why_revoked(gone)
            self._note("", "device.revoked", f"{gone.node} was {reason}")
            self._expel(gone.node, reason)

    def _expel(self, name: str, reason: str) -> None:
        self._disconnect(name, reason)
        self._tell(MemberHeld(node=name, hold="revoked", reason=reason))

    def apply(self, name: str) -> None:
        """Have the manager give a member work, or none, by its standing."""
        node = self._register.member(name)
        if node is not None:
            hold = node.state if node.state in HELD else ""
            card = bytes.fromhex(node.card)
            self._tell(MemberHeld(node=name, hold=hold, reason=node.reason, card=card, labels=node.labels))
