"""Whether a device may open a stream: one process per node, and the one before it gets a moment to respond.

``Doorway`` decides; this file waits for what it decides on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from shoal.identity.names import DEVICE_ROLES, RemoteIdentity
from shoal.roles.node.doorway import LOOK_EVERY_S, Door
from shoal.roles.node.host_router import Delivery, HostRouter
from shoal.runtime.role_server import caller_of
from shoal.wire.messages import Lane


class DoorGuard:
    def __init__(
        self,
        router: HostRouter,
        *,
        carry: Callable[[Iterable[Delivery]], object],
        alarm: Callable[[str, str, str], object],
    ) -> None:
        """``carry``: delivers what the router decides. ``alarm``: reports a second device with the identity of a node,
        by the node, the address and the reason."""
        self._router = router
        self._carry = carry
        self._alarm = alarm

    async def why_not(self, peer: RemoteIdentity, verb: str) -> str:
        """Return why this process of a node may not open a stream, or "" if it may."""
        if peer.role not in DEVICE_ROLES or verb not in (Lane.CONTROL, Lane.WORK):
            return ""
        doorway = self._router.doorway
        knock = doorway.knock(caller_of(peer))
        self._carry(self._router.on_knock(knock.caller))
        while (answer := doorway.ask(knock))[0] is Door.WAIT:
            await asyncio.sleep(LOOK_EVERY_S)
        door, reason = answer
        if door is Door.SHUT and reason is not None:
            self._alarm(peer.node, peer.address, reason)
        return reason or ""
