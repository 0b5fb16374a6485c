"""The devices of a simulation, by the name of a profile.

Every figure is in profiles.json, and docs/profiles.md says where it comes from. A device depends only on its number and
the seed: the first ten devices of a thousand are the same as those of a fleet of ten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, overload

from shoal.errors import Misuse
from shoal.sim.devices import Build, Heat, Presence
from shoal.sim.network import AccessLink
from shoal.sim.rates import Steady, Varying, mbit
from shoal.sim.rng import Rng, Stream

if TYPE_CHECKING:
    from shoal.sim.fleet_file import FleetFile

#: Name -> its description in one line.
PROFILES: dict[str, str] = {
    "even": "identical fast devices on a switched LAN, without chance: to check formulas",
    "pi4-lan": "Raspberry Pi 4 boards on switched gigabit Ethernet",
    "pi4-wifi": "Raspberry Pi 4 boards, twelve to an access point whose air they share",
    "wifi-phones": "phones from 2011 to 2019 on their homes' Wi-Fi, always there, on battery",
    "idle-phones": "the same phones, there only when idle, charging and on Wi-Fi, as recorded over five days",
    "3g-phones": "the same phones on a 3G network, on battery",
    "laptops": "laptops on slow home broadband, on the mains",
    "mixed": "of ten devices three Raspberry Pi 4 on Wi-Fi, five phones, two laptops",
}

#: At how many positions a trace may begin: devices that begin at the same one share their link's data.
_PLACES = 8

#: Out of ten mixed devices, the first are boards and the last are laptops.
_MIXED, _MIXED_BOARDS, _MIXED_PHONES = 10, 3, 5

#: Profiles whose devices are on the manager's LAN.
ON_LAN = frozenset(("even", "pi4-lan", "pi4-wifi"))

_Drawn = Callable[[int, Stream], Build]


def builds(profile: str, count: int, rng: Rng) -> list[Build]:
    """Return ``count`` devices of a profile."""
    if count < 0:
        raise Misuse(f"there are no {count} devices: give a number of 0 or more")
    return list(Fleet(profile, count, rng))


class Fleet(Sequence[Build]):
    """The devices of a profile or of a fleet file, each drawn when it is accessed, so that a million of them take no
    memory."""

    def __init__(
        self,
        profile: str | FleetFile,
        count: int,
        rng: Rng,
        *,
        presence: Callable[[int], Presence | None] | None = None,
        beside: Sequence[Build] = (),
    ) -> None:
        """``presence`` gives when the device of a number is present, if it differs from the profile. ``beside`` are
        machines without a profile, such as hubs, whose numbers follow the devices'."""
        self._draw = DRAWN[_known(profile)] if isinstance(profile, str) else profile.draw
        if not isinstance(profile, str) and profile.devices != count:
            raise Misuse(f"{profile} has {profile.devices} devices, and {count} are to be simulated")
        self._drawn = count
        self._beside = beside
        self._count = count + len(beside)
        self._rng = rng
        self._presence = presence

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> Build: ...

    @overload
    def __getitem__(self, number: slice) -> list[Build]: ...

    def __getitem__(self, number: int | slice) -> Build | list[Build]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(self._count))]
        build = self.body(number)
        is_as_drawn = self._presence is None or number >= self._drawn
        return build if is_as_drawn else replace(build, presence=self.presence(number))

    def body(self, number: int) -> Build:
        """Return a device without its presence, which a cohort reads separately and more often."""
        if not 0 <= number < self._count:
            raise IndexError(number)
        if number >= self._drawn:
            return self._beside[number - self._drawn]
        return self._draw(number, self._rng.stream("build", str(number)))

    def presence(self, number: int) -> Presence | None:
        """Return when a device is present, without drawing the rest of it."""
        if self._presence is None or number >= self._drawn:
            return self.body(number).presence
        return self._presence(number)


def home_line(profile: str | FleetFile) -> AccessLink:
    """Return the link of the manager's node."""
    if not isinstance(profile, str):
        return profile.home_line
    return _steady_line("lan" if _known(profile) in ON_LAN else "internet")


def _known(profile: str) -> str:
    if profile not in PROFILES:
        raise Misuse(f"there is no profile {profile!r}; there are: {', '.join(PROFILES)}")
    return profile


@cache
def _figures() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(resources.files(__package__).joinpath("profiles.json").read_text())
    return figures


# Lines -----------------------------------------------------------------------------------------------


@cache
def _steady_line(name: str, medium: str = "") -> AccessLink:
    figures = _figures()["lines"][name]
    return AccessLink(
        up=Steady(mbit(figures["up_kbit"] / 1000)),
        down=Steady(mbit(figures["down_kbit"] / 1000)),
        latency_s=figures["latency_s"],
        jitter_s=figures["jitter_s"],
        medium=medium,
    )


def _air_line(board: int) -> AccessLink:
    """Return a board's link. Boards fill one access point after the other."""
    return _steady_line("pi4_wifi", f"ap-{board // _figures()['lines']['devices_per_access_point']}")


@cache
def _varying_line(name: str, trace: int, place: int, up_factor: float, down_factor: float) -> AccessLink:
    """Return a link that follows a trace, times a factor in each direction."""
    traces, delays = _traces(name), _figures()["lines"][name]
    step_s = float(_figures()["trace_step_s"])
    offset_s = place * step_s * len(traces[trace]) / _PLACES
    return AccessLink(
        up=Varying(step_s, _scaled(name, trace, up_factor), offset_s),
        down=Varying(step_s, _scaled(name, trace, down_factor), offset_s),
        latency_s=delays["latency_s"],
        jitter_s=delays["jitter_s"],
    )


@cache
def _scaled(name: str, trace: int, factor: float) -> tuple[float, ...]:
    """Return a trace times a factor, in bytes per second. Cached, so that devices share it."""
    return tuple(mbit(kbit / 1000) * factor for kbit in _traces(name)[trace])


def _traces(name: str) -> list[list[int]]:
    traces: list[list[int]] = _figures()["traces_3g_kbit" if name == "3g" else "traces_fcc_kbit"]
    return traces


@cache
def _mean_kbit(name: str, trace: int) -> float:
    rates = _traces(name)[trace]
    return sum(rates) / len(rates)


def _draw_home_wifi(stream: Stream) -> AccessLink:
    """Draw a link with a measured rate that varies like a recorded one."""
    trace, place = stream.below(len(_traces("home_wifi"))), stream.below(_PLACES)
    up_kbit, down_kbit = stream.pick(_figures()["links_up_down_kbit"])
    mean_kbit = _mean_kbit("home_wifi", trace)
    return _varying_line("home_wifi", trace, place, up_kbit / mean_kbit, down_kbit / mean_kbit)


def _draw_3g(stream: Stream) -> AccessLink:
    """Draw a recorded downlink, with a share of it as the uplink."""
    trace, place = stream.below(len(_traces("3g"))), stream.below(_PLACES)
    return _varying_line("3g", trace, place, _figures()["lines"]["3g"]["up_times_down"], 1.0)


def _draw_broadband(stream: Stream) -> AccessLink:
    """Draw a recorded trace as the uplink, a home's slow direction, with a downlink that is several times faster."""
    trace, place = stream.below(len(_traces("broadband"))), stream.below(_PLACES)
    return _varying_line("broadband", trace, place, 1.0, _figures()["lines"]["broadband"]["down_times_up"])


# Devices ---------------------------------------------------------------------------------------------


@cache
def _heat(name: str) -> Heat | None:
    figures = _figures()[name]["heat"]
    return None if figures is None else Heat(**figures)


@cache
def _plain(name: str, kind: str, line: AccessLink) -> Build:
    """Return a device without random properties."""
    figures = _figures()[name]
    return Build(kind=kind, line=line, **(figures | {"heat": _heat(name)}))


def _board(line: AccessLink) -> Build:
    return _plain("pi4", "raspberry pi 4", line)


def _laptop(stream: Stream) -> Build:
    figures, line = _figures()["laptop"], _draw_broadband(stream)
    return Build(
        kind="laptop",
        seconds_per_gmac=stream.lognormal(figures["seconds_per_gmac"], figures["speed_spread"]),
        seconds_per_batch=figures["seconds_per_batch"],
        jitter=figures["jitter"],
        memory_mb=figures["memory_mb"],
        battery_wh=figures["battery_wh"],
        train_watts=figures["train_watts"],
        idle_watts=figures["idle_watts"],
        heat=_heat("laptop"),
        line=line,
    )


def _phone(stream: Stream, draw_line: Callable[[Stream], AccessLink], *, is_idle_only: bool = False) -> Build:
    figures, model = _figures()["phone"], stream.pick(_figures()["phones"])
    charge = stream.between(figures["least_charge"], 1.0)
    line = draw_line(stream)
    return Build(
        kind=model["kind"],
        seconds_per_gmac=model["seconds_per_gmac"],
        seconds_per_batch=model["seconds_per_batch"],
        jitter=model["jitter"],
        memory_mb=model["memory_mb"],
        # A phone that is present only while it charges is on the mains.
        battery_wh=0.0 if is_idle_only else charge * figures["battery_wh"],
        train_watts=figures["train_watts"],
        idle_watts=figures["idle_watts"],
        heat=_heat("phone"),
        line=line,
        presence=_draw_presence(stream) if is_idle_only else None,
    )


def _draw_presence(stream: Stream) -> Presence:
    """Draw a recorded phone's presence. All keep the same time of day; the record is exact to half an hour."""
    spans, step_s = _presences(), _figures()["presence_step_s"]
    return Presence(spans=stream.pick(spans), offset_s=stream.below(step_s))


@cache
def _presences() -> tuple[tuple[tuple[bool, int], ...], ...]:
    """Return the recorded run lengths, absence first, as spans."""
    step_s = _figures()["presence_step_s"]
    return tuple(
        tuple((at % 2 == 1, run * step_s) for at, run in enumerate(runs) if run) for runs in _figures()["presence"]
    )


def _mixed(number: int, stream: Stream) -> Build:
    ten, place = divmod(number, _MIXED)
    if place < _MIXED_BOARDS:
        return _board(_air_line(ten * _MIXED_BOARDS + place))
    if place < _MIXED_BOARDS + _MIXED_PHONES:
        return _phone(stream, _draw_home_wifi)
    return _laptop(stream)


#: Profile -> what draws its devices.
DRAWN: dict[str, _Drawn] = {
    "even": lambda number, stream: _plain("even", "even", _steady_line("lan")),
    "pi4-lan": lambda number, stream: _board(_steady_line("lan")),
    "pi4-wifi": lambda number, stream: _board(_air_line(number)),
    "wifi-phones": lambda number, stream: _phone(stream, _draw_home_wifi),
    "idle-phones": lambda number, stream: _phone(stream, _draw_home_wifi, is_idle_only=True),
    "3g-phones": lambda number, stream: _phone(stream, _draw_3g),
    "laptops": lambda number, stream: _laptop(stream),
    "mixed": _mixed,
}
