"""What a fleet needs: leaders, links, memory, money, and which part saturates first. Pure; does not depend on how it
was measured.

D devices each send an update of u bytes and receive a model of m bytes every t seconds. Then

    updates per second     U = D / t
    leader cores           U · (a + b · (u + m)) / r    a per update, b per byte of it; r: how full a core may be
    bytes per second       U · u up, U · m down; links = the larger of both / (r · link)
    manager cores          D / h · c / r                a heartbeat every h seconds costs c
    memory                 D · d + each process         d per connected device
    back after a restart   2 · D · k / cores            two connections per device, k each
    history                U · q                        a row of q bytes per update
    levels                 a leader's partial is one update to the leader above it, until one is left

with a, b, c, d, k and q measured. Leaders and managers are processes of one core each, since Python runs on one core at
a time. The costs were measured on one machine with a few hundred devices. Everything beyond is this arithmetic, and
every figure states which of the two it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from shoal.errors import Misuse

#: ``measured``: seen on a machine. ``modelled``: follows from measurements, by the formulas above. ``assumed``: a value
#: that somebody chose; replace it with the true one for your site.
Basis = Literal["measured", "modelled", "assumed"]

DAY_S = 86_400.0
#: A month for billing: a twelfth of a year.
MONTH_S = 730 * 3600.0

#: Each device has one connection for heartbeats and one for work.
CONNECTIONS_PER_DEVICE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetLoad:
    """The size of a fleet, and what each device sends and receives how often."""

    devices: int
    model_bytes: float
    every_s: float
    #: Bytes that a device sends; a codec makes them fewer than the model's. None means as many as the model's.
    update_bytes: float | None = None
    heartbeat_s: float = 1.0

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise Misuse(f"the fleet must have at least one device, not {self.devices}")
        _positive("a model's size in bytes", self.model_bytes)
        _positive("the seconds between two updates of a device", self.every_s)
        _positive("the seconds between two heartbeats", self.heartbeat_s)
        if self.update_bytes is not None:
            _positive("an update's size in bytes", self.update_bytes)

    @property
    def up_bytes(self) -> float:
        return self.model_bytes if self.update_bytes is None else self.update_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Measured costs of one of each thing for a leader or manager."""

    #: Merging only: decoding, checking and summing one byte of an update.
    fold_core_s_per_byte: float
    #: An update over mutual TLS with the model sent back: a fixed cost, and a cost per byte of both.
    update_core_s: float
    update_core_s_per_byte: float
    heartbeat_core_s: float
    #: One connection, until it is open and its device has its welcome.
    connection_core_s: float
    #: Memory that a connected device takes in its manager, for both its connections together.
    device_bytes: float
    #: Memory of a manager without devices, and what leading adds to it for a model of 2.88 MB.
    manager_bytes: float
    leader_bytes: float
    #: One row of a job's history.
    history_bytes: float

    def __post_init__(self) -> None:
        for field in fields(self):
            _positive(field.name, getattr(self, field.name))

    def update_core_s_of(self, moved_bytes: float) -> float:
        """Return the cost of an update that moves this many bytes, up and down together."""
        return self.update_core_s + self.update_core_s_per_byte * moved_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCosts:
    """Costs, with where and when they were measured."""

    costs: Costs
    machine: str
    date: str
    #: The most devices that were connected at once during the measurement.
    devices_tried: int
    #: Processes per core that wanted to run during it, on average: on a busy machine everything costs more.
    load: float

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> MeasuredCosts:
        """Read the file that `python -m benchmarks.capacity --save` wrote."""
        try:
            return cls(
                costs=Costs(**{name: float(value) for name, value in plain["figures"].items()}),
                machine=str(plain["machine"]),
                date=str(plain["date"]),
                devices_tried=int(plain["devices_tried"]),
                load=float(plain["load"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            again = "write them again with `python -m benchmarks.capacity --save`"
            raise Misuse(f"the measured figures cannot be read ({problem}): {again}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Where the fleet would run, and prices. All values are assumptions until you set your own."""

    link_bytes_per_s: float = 1.25e9
    cores_per_machine: int = 8
    memory_bytes_per_machine: float = 32e9
    #: How full a core or a link may be on average: bursts need room.
    full: float = 0.7
    #: Open files that one process may have; many systems allow this many when asked.
    files_per_process: int = 1 << 20
    price_core_hour: float = 0.04
    #: For bytes sent to devices; bytes that they send are assumed to be free.
    price_gb_down: float = 0.05

    def __post_init__(self) -> None:
        for name in ("link_bytes_per_s", "cores_per_machine", "memory_bytes_per_machine", "files_per_process"):
            _positive(name, getattr(self, name))
        if not 0 < self.full <= 1:
            raise Misuse(f"full is {self.full}; it must be above 0 and at most 1")
        for name in ("price_core_hour", "price_gb_down"):
            if not 0 <= getattr(self, name) < math.inf:
                raise Misuse(f"{name} is {getattr(self, name)}; it must be 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One number of the answer, with its basis."""

    name: str
    value: float
    unit: str
    basis: Basis
    #: How it was computed, as text.
    how: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """How many devices one part of one leader and manager can serve, if no other part saturates before it."""

    part: str
    devices: int
    basis: Basis
    how: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """The answer."""

    figures: tuple[Figure, ...]
    #: The part that saturates first comes first.
    limits: tuple[Limit, ...]

    def __getitem__(self, name: str) -> float:
        for figure in self.figures:
            if figure.name == name:
                return figure.value
        raise Misuse(f"figure {name!r} does not exist; the figures are {', '.join(each.name for each in self.figures)}")


def needs(fleet: FleetLoad, measured: MeasuredCosts, site: Site | None = None) -> Needs:
    """Return what this fleet needs at this site."""
    site = site or Site()
    return Needs(figures=_figures(fleet, measured, site), limits=limits(fleet, measured, site))


def limits(fleet: FleetLoad, measured: MeasuredCosts, site: Site) -> tuple[Limit, ...]:
    """Return how many devices each part of one leader and one manager on one machine can serve."""
    costs = measured.costs
    update_core_s = costs.update_core_s_of(fleet.up_bytes + fleet.model_bytes)
    way, wide_bytes = ("up", fleet.up_bytes) if fleet.up_bytes > fleet.model_bytes else ("down", fleet.model_bytes)
    fits_bytes = max(0.0, site.memory_bytes_per_machine - costs.manager_bytes - costs.leader_bytes)
    found = (
        Limit(
            part="heartbeats",
            devices=int(site.full * fleet.heartbeat_s / costs.heartbeat_core_s),
            basis="modelled",
            how=f"one manager core; {1e6 * costs.heartbeat_core_s:.0f} µs each, one every {fleet.heartbeat_s:g} s",
        ),
        Limit(
            part="merging",
            devices=int(site.full * fleet.every_s / update_core_s),
            basis="modelled",
            how=f"one leader core; {1e3 * update_core_s:.2f} ms per update, with TLS and the model back",
        ),
        Limit(
            part="link",
            devices=int(site.full * site.link_bytes_per_s * fleet.every_s / wide_bytes),
            basis="assumed",
            how=f"{_gbit(site.link_bytes_per_s)} of one machine, {way}: the busier direction",
        ),
        Limit(
            part="memory",
            devices=int(fits_bytes / costs.device_bytes),
            basis="modelled",
            how=f"{costs.device_bytes / 1e3:.0f} kB per device, in {site.memory_bytes_per_machine / 1e9:g} GB",
        ),
        Limit(
            part="sockets",
            devices=site.files_per_process // CONNECTIONS_PER_DEVICE,
            basis="assumed",
            how=f"{site.files_per_process:,} open files per process, two per device",
        ),
        Limit(
            part="coming back",
            devices=int(fleet.every_s / (CONNECTIONS_PER_DEVICE * costs.connection_core_s)),
            basis="modelled",
            how=f"all connect again on one core in {fleet.every_s:g} s; {1e3 * costs.connection_core_s:.2f} ms each",
        ),
    )
    return tuple(sorted(found, key=lambda limit: limit.devices))


def _figures(fleet: FleetLoad, measured: MeasuredCosts, site: Site) -> tuple[Figure, ...]:
    costs = measured.costs
    per_s = fleet.devices / fleet.every_s
    update_core_s = costs.update_core_s_of(fleet.up_bytes + fleet.model_bytes)
    leader_cores = per_s * update_core_s / site.full
    leaders = math.ceil(leader_cores)
    beats_per_s = fleet.devices / fleet.heartbeat_s
    manager_cores = beats_per_s * costs.heartbeat_core_s / site.full
    managers = max(math.ceil(manager_cores), math.ceil(CONNECTIONS_PER_DEVICE * fleet.devices / site.files_per_process))
    up_bytes_per_s, down_bytes_per_s = per_s * fleet.up_bytes, per_s * fleet.model_bytes
    links = math.ceil(max(up_bytes_per_s, down_bytes_per_s) / (site.full * site.link_bytes_per_s))
    memory_bytes = (
        fleet.devices * costs.device_bytes + (leaders + managers) * costs.manager_bytes + leaders * costs.leader_bytes
    )
    machines = max(
        math.ceil((leaders + managers) / site.cores_per_machine),
        math.ceil(memory_bytes / site.memory_bytes_per_machine),
        links,
    )
    cores = machines * site.cores_per_machine
    cores_month = cores * site.price_core_hour * MONTH_S / 3600
    down_month = down_bytes_per_s * MONTH_S / 1e9 * site.price_gb_down
    back_s = CONNECTIONS_PER_DEVICE * fleet.devices * costs.connection_core_s / (leaders + managers)
    fold_cores = per_s * fleet.up_bytes * costs.fold_core_s_per_byte / site.full
    bill = f"{site.price_core_hour:g} per core and hour, {site.price_gb_down:g} per GB to devices"

    def modelled(name: str, value: float, unit: str, how: str) -> Figure:
        return Figure(name=name, value=value, unit=unit, basis="modelled", how=how)

    def seen(name: str, value: float, unit: str, how: str = "") -> Figure:
        tried = f"with {measured.devices_tried} devices connected over mutual TLS"
        return Figure(name=name, value=value, unit=unit, basis="measured", how=how or tried)

    return (
        modelled("update_core_ms", 1e3 * update_core_s, "ms", "with the model back; a line through two measured sizes"),
        seen("heartbeat_core_us", 1e6 * costs.heartbeat_core_s, "µs", "over mutual TLS, at thousands per second"),
        seen("connection_core_ms", 1e3 * costs.connection_core_s, "ms"),
        seen("device_bytes", costs.device_bytes, "B"),
        modelled("updates_per_s", per_s, "/s", "devices / time between updates"),
        modelled("leader_cores", leader_cores, "", f"updates per second · cost per update / {site.full:g} full"),
        modelled("fold_cores", fold_cores, "", "only for decoding, checks and sums"),
        modelled("leaders", leaders, "", "processes of one core; each leads a share of the devices"),
        modelled("levels", levels(leaders, fleet, costs, site), "", "leaders above leaders until one is left"),
        modelled("heartbeats_per_s", beats_per_s, "/s", f"one every {fleet.heartbeat_s:g} s from each"),
        modelled("managers", managers, "", "processes of one core that receive heartbeats"),
        modelled("up_bytes_per_s", up_bytes_per_s, "B/s", "updates per second · update"),
        modelled("down_bytes_per_s", down_bytes_per_s, "B/s", "updates per second · model"),
        modelled("links", links, "", f"of {_gbit(site.link_bytes_per_s)}, full to {site.full:g}"),
        modelled("connections", CONNECTIONS_PER_DEVICE * fleet.devices, "", "two per device"),
        modelled("memory_bytes", memory_bytes, "B", f"{costs.device_bytes / 1e3:.0f} kB per device, and the processes"),
        modelled("back_s", back_s, "s", "all connect again after a restart, on all these cores"),
        modelled("history_bytes_per_day", per_s * costs.history_bytes * DAY_S, "B", "a row for each update"),
        modelled(
            "machines", machines, "", f"of {site.cores_per_machine} cores, whichever of cores, memory, links is most"
        ),
        Figure(name="cores_price", value=cores_month, unit="a month", basis="assumed", how=bill),
        Figure(name="down_price", value=down_month, unit="a month", basis="assumed", how=bill),
    )


def levels(leaders: int, fleet: FleetLoad, costs: Costs, site: Site) -> int:
    """Return the number of levels of a tree of leaders, from those that devices connect to up to the one at the top.

    While a device sends one update, each leader sends up one partial, as large as a model, and receives one model.
    """
    bears = max(2, int(site.full * fleet.every_s / costs.update_core_s_of(2 * fleet.model_bytes)))
    count = 1
    while leaders > 1:
        leaders = math.ceil(leaders / bears)
        count += 1
    return count


def _gbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8 / 1e9:g} Gb/s"


def _positive(what: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise Misuse(f"{what} is {value}; it must be a positive number")
