"""An operator asks a manager how the manager itself is. It answers from memory, also while its stores are away."""

from __future__ import annotations

from shoal.errors import PeerViolation
from shoal.wire.limits import MANAGERS_MAX
from shoal.wire.messages.base import Message, is_endpoint, message


@message(to="manager", said_by={"Operate": ("operator",)})
class AskManager(Message):
    """How is this manager?"""


@message(to="manager", said_by={"Operate": ("operator",)})
class DrainManager(Message):
    """Have a manager give its jobs to others and take no more, also after it is started again."""

    #: Where devices dial it, or empty for the manager that is asked.
    manager: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        _check_endpoint("DrainManager", self.manager)


@message(to="manager", said_by={"Operate": ("operator",)})
class UndrainManager(Message):
    """Have a drained manager take jobs again."""

    #: Where devices dial it, or empty for the manager that is asked.
    manager: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        _check_endpoint("UndrainManager", self.manager)


@message()
class StoreView(Message):
    """How a store answered this manager since its process started."""

    #: ``database`` or ``bucket``.
    store: str
    #: Calls that ended, by the first bound of ``store.usage.BOUNDS_S`` that they did not exceed; slower ones last.
    counts: tuple[int, ...] = ()
    #: What all these calls took together.
    seconds: float = 0.0
    errors: int = 0
    #: How long the oldest open call has waited. 0 if none is open.
    waiting_s: float = 0.0


@message()
class ManagerView(Message):
    #: The HOST:PORT where devices dial this manager.
    manager: str
    #: Why a device that dials now would not be served. Empty if it would be.
    trouble: str = ""
    #: Whether this manager has a seat. One that is alone always has.
    has_seat: bool = True
    #: Seconds since it last proved its seat. Negative if it is alone.
    unproven_s: float = -1.0
    #: Seats of silent managers that it ended.
    takeovers: int = 0
    #: Jobs that it took over from managers that are gone.
    jobs_taken: int = 0
    #: How often it found that its database went back in time, and had terms jump.
    went_back: int = 0
    #: The longest delay of its event loop within the last minute.
    loop_lag_s: float = 0.0
    #: When the authority ends with which it issues certificates, in seconds since 1970.
    authority_until_s: float = 0.0
    #: How many devices are connected to it.
    devices: int = 0
    stores: tuple[StoreView, ...] = ()
    #: Where the other managers are dialled that live, as this one sees it.
    others: tuple[str, ...] = ()
    #: Its seat, by name. Empty if it is alone.
    seat: str = ""
    #: How many open jobs it has.
    jobs: int = 0
    #: An operator drained it: it takes no job, and gives those that it has to others.
    is_drained: bool = False

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if len(self.others) > MANAGERS_MAX:
            raise PeerViolation(f"ManagerView.others has {len(self.others)} entries; the maximum is {MANAGERS_MAX}")
        for each in (self.manager, *self.others):
            if not is_endpoint(each):
                raise PeerViolation(f"ManagerView names {each[:80]!r}, which cannot be dialled")


def _check_endpoint(name: str, manager: str) -> None:
    if manager and not is_endpoint(manager):
        raise PeerViolation(f"{name}.manager is {manager[:80]!r}, which cannot be dialled: give HOST:PORT")
