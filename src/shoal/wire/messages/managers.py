"""A manager's report on itself. It answers from memory, so it can answer while its stores are unavailable."""

from __future__ import annotations

from shoal.errors import PeerViolation
from shoal.wire.limits import MANAGERS_MAX
from shoal.wire.messages.base import Message, is_endpoint, message


@message(to="manager", said_by={"Operate": ("operator",)})
class AskManager(Message):
    """Ask a manager for its own state."""


@message(to="manager", said_by={"Operate": ("operator",)})
class DrainManager(Message):
    """Have a manager give its jobs to others and take no more, also after it is started again."""

    #: Where devices dial it, or empty for the manager that is asked.
    manager: str = ""
    reason: str = ""

    def _check(self) -> None:
        _check_endpoint("DrainManager", self.manager)


@message(to="manager", said_by={"Operate": ("operator",)})
class UndrainManager(Message):
    """Have a drained manager take jobs again."""

    #: Where devices dial it, or empty for the manager that is asked.
    manager: str = ""

    def _check(self) -> None:
        _check_endpoint("UndrainManager", self.manager)


@message()
class StoreView(Message):
    """A store's calls since this manager's process started."""

    #: ``database`` or ``bucket``.
    store: str
    #: Completed calls, by the first bound of ``store.usage.BOUNDS_S`` that they did not exceed; slower ones last.
    counts: tuple[int, ...] = ()
    #: How long all these calls took together.
    seconds: float = 0.0
    errors: int = 0
    #: How long the oldest call in progress has waited. 0 if none is in progress.
    waiting_s: float = 0.0


@message()
class ManagerView(Message):
    #: The HOST:PORT where devices dial this manager.
    manager: str
    #: Why a device that dials now would not be served. Empty if it would be.
    trouble: str = ""
    #: Whether this manager has a seat. The only manager of a cluster always has one.
    has_seat: bool = True
    #: Seconds since it last proved its seat. Negative if it is the only manager.
    unproven_s: float = -1.0
    #: How many silent managers' seats it ended.
    takeovers: int = 0
    #: How many jobs it took over from lost managers.
    jobs_taken: int = 0
    #: How often it found that its database had gone back in time, and therefore made terms jump ahead.
    went_back: int = 0
    #: The longest delay of its event loop within the last minute.
    loop_lag_s: float = 0.0
    #: When the authority with which it issues certificates expires, in seconds since 1970.
    authority_until_s: float = 0.0
    #: How many devices are connected to it.
    devices: int = 0
    stores: tuple[StoreView, ...] = ()
    #: Where to dial the other managers that this one sees alive.
    others: tuple[str, ...] = ()
    #: Its seat, by name. Empty if it is alone.
    seat: str = ""
    #: How many open jobs it has.
    jobs: int = 0
    #: An operator drained it: it takes no job, and gives those that it has to others.
    is_drained: bool = False

    def _check(self) -> None:
        if len(self.others) > MANAGERS_MAX:
            raise PeerViolation(f"ManagerView.others has {len(self.others)} entries; the maximum is {MANAGERS_MAX}")
        for each in (self.manager, *self.others):
            if not is_endpoint(each):
                raise PeerViolation(f"ManagerView names the endpoint {each[:80]!r}; it must be HOST:PORT")


def _check_endpoint(name: str, manager: str) -> None:
    if manager and not is_endpoint(manager):
        raise PeerViolation(f"{name}.manager is {manager[:80]!r}, which cannot be dialled: give HOST:PORT")
