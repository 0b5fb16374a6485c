"""What the tables of a node need from a host: the object of a driver that runs one role."""

from __future__ import annotations

from typing import Protocol

from shoal.roles.actions import Role
from shoal.roles.events import Event


class RoleRunner(Protocol):
    """An inbox, a role and its timers. Each driver has a class for it."""

    @property
    def ended(self) -> bool:
        """Whether the role was released: its actions are not carried out any more."""
        ...

    def post(self, event: Event) -> None:
        """Hand the role an event. Until the role is set up, the event waits."""
        ...

    def start(self, role: Role) -> None: ...
