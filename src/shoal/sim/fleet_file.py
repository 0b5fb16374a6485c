"""Reads a fleet of devices from a file: groups that are alike, their links, and when each device is there.

docs/plan-a-fleet.md describes the file. All of it is checked when it is read. A device is made each time it is asked
for, so that 100,000 of them take no memory.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import math
import os
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from shoal.errors import Misuse
from shoal.sim.devices import Build, Presence
from shoal.sim.network import AccessLink
from shoal.sim.outcome import Outcome
from shoal.sim.profiles import DRAWN, ON_LAN, PROFILES, home_line
from shoal.sim.rates import Steady, mbit
from shoal.sim.rng import Rng, Stream

FILE_BYTES_MAX = 1 << 20
GROUPS_MAX = 10_000
DEVICES_MAX = 10_000_000
PRESENCE_BYTES_MAX = 1 << 29
#: Larger figures and later seconds are typing errors.
NUMBER_MAX = 10**9

#: The devices of a simulation if nobody says otherwise.
DEVICES, PROFILE = 20, "pi4-lan"

#: Memory of a device whose group names neither memory nor a profile.
MEMORY_MB = 4096

#: A profile's devices repeat their kinds after this many.
_KINDS_REPEAT = 10

#: Key -> the least number, whether it must be above that, and an example.
_NUMBERS: dict[str, tuple[float, bool, str]] = {
    "seconds_per_gmac": (0.0, True, "0.43"),
    "seconds_per_batch": (0.0, False, "0.003"),
    "jitter": (0.0, False, "0.05"),
    "memory_mb": (1.0, False, "3584"),
    "battery_wh": (0.0, False, "12.0"),
    "train_watts": (0.0, False, "6.4"),
    "idle_watts": (0.0, False, "2.7"),
    "up_mbps": (0.0, True, "10"),
    "down_mbps": (0.0, True, "50"),
    "latency_s": (0.0, False, "0.01"),
    "price_per_kwh": (0.0, False, "0.30"),
    "price_per_gb": (0.0, False, "0.05"),
}
_PRICES = ("price_per_kwh", "price_per_gb", "currency")
_LINK = ("up_mbps", "down_mbps", "latency_s")
_WHOLE = frozenset(("memory_mb",))
_GROUP_NUMBERS = tuple(key for key in _NUMBERS if key not in _PRICES)
_GROUP_KEYS = ("name", "count", "profile", *_GROUP_NUMBERS, "presence", "presence_period_s")
#: What a group has to say if it names no profile.
_NEEDED = ("seconds_per_gmac", "up_mbps", "down_mbps")
_TABLES = ("group", "manager", "prices")
_CSV_HEAD = ["device", "from_s", "to_s"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceGroup:
    """Devices of a fleet that are described together."""

    name: str
    count: int
    drawn: Callable[[int, Stream], Build]
    #: What differs from the devices that are drawn, and from their links.
    changes: Mapping[str, Any] = field(default_factory=dict)
    link: Mapping[str, Any] = field(default_factory=dict)
    #: When its devices are present. They take these in turn.
    presences: tuple[Presence, ...] = ()

    def device(self, number: int, stream: Stream) -> Build:
        """Return the device of this number in the group."""
        build, changes = self.drawn(number, stream), dict(self.changes)
        if self.link or build.line.medium:
            # Another group's access points are not these.
            medium = f"{self.name} {build.line.medium}" if build.line.medium else ""
            changes["line"] = replace(build.line, **self.link, medium=medium)
        if self.presences:
            changes["presence"] = self.presences[number % len(self.presences)]
        return replace(build, **changes) if changes else build


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetFile:
    """The devices of a fleet file, in the order of its groups. It can stand wherever a profile can."""

    path: str
    groups: tuple[DeviceGroup, ...]
    #: The link of the manager's node.
    home_line: AccessLink
    #: What a kWh and a GB cost, or None if the file does not say.
    price_per_kwh: float | None = None
    price_per_gb: float | None = None
    currency: str = ""
    #: Over the file and the traces that it names.
    sha256: str
    _ends: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", tuple(accumulate(group.count for group in self.groups)))

    def __str__(self) -> str:
        return Path(self.path).name

    @property
    def devices(self) -> int:
        return self._ends[-1]

    def draw(self, number: int, stream: Stream) -> Build:
        """Return the device of this number in the fleet."""
        at = bisect_right(self._ends, number)
        group = self.groups[at]
        return group.device(number - self._ends[at] + group.count, stream)

    def cost(self, outcome: Outcome) -> dict[str, float]:
        """Return what a job cost, by the prices in the file: energy of the devices, and bytes over their links."""
        found: dict[str, float] = {}
        if self.price_per_kwh is not None:
            found["energy"] = outcome.energy_wh / 1000 * self.price_per_kwh
        if self.price_per_gb is not None:
            found["traffic"] = (outcome.bytes_up + outcome.bytes_down) / 1e9 * self.price_per_gb
        return found

    def to_plain(self) -> dict[str, str]:
        """Return which fleet this is, for traces and results."""
        return {"fleet": self.path, "sha256": self.sha256}

    @classmethod
    def from_plain(cls, plain: Mapping[str, str]) -> FleetFile:
        """Read the fleet of a trace again. Refuses one that was changed since."""
        fleet = load_fleet(plain["fleet"])
        if fleet.sha256 != plain["sha256"]:
            raise Misuse(f"{fleet.path}, or a presence file that it names, is not what it was when this was simulated")
        return fleet


def chosen_devices(
    *, devices: int | None, profile: str | None, fleet: str | Path | None
) -> tuple[int, str | FleetFile]:
    """Return how many devices a person asks for, and what they are."""
    if fleet is not None and (devices is not None or profile is not None):
        extra = "a number of devices" if devices is not None else "a profile"
        raise Misuse(f"{fleet} says how many devices there are and what they are: leave out {extra}, or the fleet file")
    if fleet is not None:
        found = load_fleet(fleet)
        return found.devices, found
    profile = PROFILE if profile is None else profile
    if profile not in PROFILES:
        raise Misuse(f"there is no profile {profile!r}; there are: {', '.join(PROFILES)}")
    devices = DEVICES if devices is None else devices
    if devices < 1:
        raise Misuse(f"a simulation has at least one device, not {devices}")
    return devices, profile


# Reading the file ------------------------------------------------------------------------------------------


def load_fleet(path: str | Path) -> FleetFile:
    """Read a fleet file and the presence files that it names. Raises Misuse for whatever is wrong in them."""
    digest = hashlib.sha256()
    content = _content(Path(path), str(path), at_most=FILE_BYTES_MAX)
    digest.update(content)
    try:
        told = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Misuse(f"{path} is not TOML: {error}") from None
    _known(told, _TABLES, where=str(path), what="a fleet file", write="[[group]], [manager] and [prices]")
    listed = told.get("group", [])
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise Misuse(f"{path}: write a group as a table [[group]], with two brackets")
    if not 1 <= len(listed) <= GROUPS_MAX:
        raise Misuse(f"{path} has {len(listed)} groups: write 1 to {GROUPS_MAX:,} tables [[group]]")
    groups: dict[str, DeviceGroup] = {}
    for number, each in enumerate(listed, start=1):
        group = _Table(each, file=Path(path), where=f"{path}, {_called(each, number)}", digest=digest).group()
        if group.name in groups:
            raise Misuse(f"{path}: two groups are called {group.name!r}: give each a name of its own")
        groups[group.name] = group
    if (count := sum(group.count for group in groups.values())) > DEVICES_MAX:
        raise Misuse(f"{path} has {count:,} devices: at most {DEVICES_MAX:,} can be simulated")
    profiles = {str(each.get("profile", "")) for each in listed}
    usual = home_line("pi4-lan" if profiles <= ON_LAN else "wifi-phones")
    return FleetFile(
        path=str(path),
        groups=tuple(groups.values()),
        home_line=replace(usual, **_side_table(told, "manager", _LINK, path, digest).link()),
        **_side_table(told, "prices", _PRICES, path, digest).prices(),
        sha256=digest.hexdigest(),
    )


def _content(path: Path, called: str, *, at_most: int) -> bytes:
    try:
        with path.open("rb") as file:
            # Not more than there is: memory for all that is asked for is taken at once.
            content = file.read(min(at_most, os.fstat(file.fileno()).st_size) + 1)
    except OSError as error:
        raise Misuse(f"{called} cannot be read: {error.strerror}. Name a file that is there") from None
    if len(content) > at_most:
        raise Misuse(f"{called} is larger than {at_most:,} bytes: describe devices that are alike once")
    return content


def _known(told: Mapping[str, Any], known: Collection[str], *, where: str, what: str, write: str = "") -> None:
    """Refuse an unknown key. The error names the nearest known ones."""
    for name in told:
        if name not in known:
            like = [each for each in known if name and name in each.split("_")]
            like = like or difflib.get_close_matches(name, known, n=2, cutoff=0.5)
            hint = f"did you mean {' or '.join(like)}? " if like else ""
            raise Misuse(f"{where}: there is no key {name[:40]!r}; {hint}{what} has {write or ', '.join(known)}")


def _called(told: Mapping[str, Any], number: int) -> str:
    """Return what an error calls a group."""
    name = told.get("name")
    return f"group {name[:40]!r}" if isinstance(name, str) and name else f"group {number}"


def _side_table(told: Mapping[str, Any], name: str, keys: Collection[str], path: str | Path, digest: Any) -> _Table:
    """Return a table that a file has at most once, with known keys."""
    table, where = told.get(name, {}), f"{path}, [{name}]"
    if not isinstance(table, dict):
        raise Misuse(f"{where}: write it as a table [{name}], with {', '.join(keys)}")
    _known(table, keys, where=where, what=f"[{name}]")
    return _Table(table, file=Path(path), where=where, digest=digest)


class _Table:
    """One table of the file, read key by key."""

    def __init__(self, told: Mapping[str, Any], *, file: Path, where: str, digest: Any) -> None:
        self._told = told
        self._file = file
        self._where = where
        self._digest = digest

    def group(self) -> DeviceGroup:
        _known(self._told, _GROUP_KEYS, where=self._where, what="a group")
        name, profile = self._text("name", "pis"), self._text("profile", PROFILE, is_needed=False)
        if not name.isprintable() or len(name) > 100:
            self._wrong("name has more than 100 characters, or some that cannot be printed: write a short one")
        if profile and profile not in PROFILES:
            self._wrong(f"there is no profile {profile!r}; write one of {', '.join(PROFILES)}")
        count = self._told.get("count")
        if type(count) is not int or count < 1:
            told = "missing" if count is None else repr(count)[:40]
            self._wrong(f"count is {told}; write the number of its devices, 1 or more, such as count = 100")
        numbers = {key: self._number(key) for key in _GROUP_NUMBERS if key in self._told and key not in _LINK}
        presences = self._presences()
        if profile:
            made = DeviceGroup(
                name=name,
                count=count,
                drawn=DRAWN[profile],
                changes={"kind": name, **numbers},
                link=self.link(),
                presences=presences,
            )
        else:
            build = self._build(name, numbers)
            made = DeviceGroup(name=name, count=count, drawn=lambda number, stream: build, presences=presences)
        self._try(made)
        return made

    def link(self) -> dict[str, Any]:
        """Return the figures of the link in this table, as fields of ``AccessLink``."""
        found: dict[str, Any] = {}
        for key, name in (("up_mbps", "up"), ("down_mbps", "down")):
            if key in self._told:
                found[name] = Steady(mbit(self._number(key)))
        if "latency_s" in self._told:
            found["latency_s"] = self._number("latency_s")
        return found

    def prices(self) -> dict[str, Any]:
        found = {key: self._number(key) for key in _PRICES if key in _NUMBERS and key in self._told}
        currency = self._text("currency", "EUR", is_needed=False)
        if not currency.isprintable() or len(currency) > 10:
            self._wrong('currency has more than 10 characters, or odd ones: write a short name, such as "EUR"')
        return {**found, "currency": currency}

    def _build(self, name: str, numbers: dict[str, float]) -> Build:
        if missing := [key for key in _NEEDED if key not in self._told]:
            self._wrong(
                f"{' and '.join(missing)} missing: write {', '.join(f'{key} = {_NUMBERS[key][2]}' for key in missing)},"
                f' or take the devices of a profile, such as profile = "{PROFILE}"'
            )
        usual = {"seconds_per_batch": 0.0, "memory_mb": MEMORY_MB, "train_watts": numbers.get("idle_watts", 0.0)}
        try:
            return Build(kind=name, line=AccessLink(**self.link()), **{**usual, **numbers})  # type: ignore[arg-type]
        except Misuse as error:
            self._wrong(str(error))

    def _try(self, group: DeviceGroup) -> None:
        """Make one device of each kind: what a profile and this table say may not go together."""
        try:
            for number in range(min(group.count, _KINDS_REPEAT)):
                group.device(number, Rng(0).stream("build", str(number)))
        except Misuse as error:
            self._wrong(f"{error}; write train_watts and idle_watts that go together")

    # One key -------------------------------------------------------------------------------------------

    def _wrong(self, what: str) -> NoReturn:
        raise Misuse(f"{self._where}: {what}")

    def _text(self, key: str, example: str, *, is_needed: bool = True) -> str:
        value = self._told.get(key, "" if not is_needed else None)
        if not isinstance(value, str) or (is_needed and not value):
            told = "missing" if value is None else repr(value)
            self._wrong(f'{key} is {told}; write a text, such as {key} = "{example}"')
        return value

    def _number(self, key: str) -> Any:
        value, (least, is_above, example) = self._told[key], _NUMBERS[key]
        is_number = type(value) is int or (type(value) is float and key not in _WHOLE and math.isfinite(value))
        if not is_number or not least <= value <= NUMBER_MAX or (is_above and value == least):
            kind = "whole number" if key in _WHOLE else "number"
            bound = f"above {least:g}" if is_above else f"of {least:g} to {NUMBER_MAX}"
            self._wrong(f"{key} is {repr(value)[:40]}; write a {kind} {bound}, such as {key} = {example}")
        return value

    # Presence ------------------------------------------------------------------------------------------

    def _presences(self) -> tuple[Presence, ...]:
        period_s = self._told.get("presence_period_s")
        if period_s is not None and (type(period_s) is not int or not 1 <= period_s <= NUMBER_MAX):
            self._wrong(f"presence_period_s is {period_s!r}; write whole seconds, such as 86400 for a day")
        if "presence" not in self._told:
            if period_s is not None:
                self._wrong("presence_period_s says after what time a trace repeats: write presence = FILE, too")
            return ()
        path = self._file.parent / self._text("presence", "trace.csv")
        content = _content(path, f"{self._where}: its presence file {path}", at_most=PRESENCE_BYTES_MAX)
        self._digest.update(content)
        try:
            return presences_of(content.decode("utf-8-sig"), period_s=period_s, called=str(path))
        except (Misuse, UnicodeDecodeError, csv.Error) as error:
            self._wrong(f"its presence file {error if isinstance(error, Misuse) else f'{path}: {error}'}")


def presences_of(text: str, *, period_s: int | None = None, called: str = "presence") -> tuple[Presence, ...]:
    """Return when each device of a trace is present, in the order in which the trace first names them.

    The trace is CSV: a device's name and the seconds from and to which it is present. It repeats after ``period_s``,
    or after its last second.
    """
    rows = csv.reader(text.splitlines())
    head = next(rows, [])
    if [name.strip() for name in head] != _CSV_HEAD:
        raise Misuse(f"{called}:1: write {','.join(_CSV_HEAD)} as its first line, then a line for each span")
    found: dict[str, list[tuple[int, int, int]]] = {}
    for row in rows:
        line = rows.line_num
        if not row:
            continue
        try:
            device, begin_s, end_s = row[0].strip(), int(row[1]), int(row[2])
        except (ValueError, IndexError):
            device, begin_s, end_s = "", 0, 0
        if len(row) != 3 or not device or not 0 <= begin_s < end_s <= NUMBER_MAX:
            raise Misuse(f"{called}:{line}: write a device and two whole seconds, the second one later, as pi-7,0,3600")
        found.setdefault(device, []).append((begin_s, end_s, line))
    if not found:
        raise Misuse(
            f"{called} has no span: write one, as pi-7,0,3600, or leave presence out if devices are always there"
        )
    last_s = max(end_s for spans in found.values() for _, end_s, _ in spans)
    if period_s is not None and last_s > period_s:
        raise Misuse(f"{called} goes on to second {last_s}: write presence_period_s = {last_s} or more")
    return tuple(Presence(spans=_spans(spans, period_s or last_s, (called, device))) for device, spans in found.items())


def _spans(spans: list[tuple[int, int, int]], period_s: int, where: tuple[str, str]) -> tuple[tuple[bool, int], ...]:
    """Return the spans of one device without gaps, from second 0 to the end of the period. ``where`` is the file and
    the device."""
    found: list[tuple[bool, int]] = []
    at_s = 0
    for begin_s, end_s, line in sorted(spans):
        if begin_s < at_s:
            overlap = f"from {begin_s} to {end_s}, and until {at_s} by another line"
            raise Misuse(f"{where[0]}:{line}: {where[1]} is there {overlap}: write spans that do not overlap")
        if begin_s > at_s:
            found.append((False, begin_s - at_s))
        found.append((True, end_s - begin_s))
        at_s = end_s
    if at_s < period_s:
        found.append((False, period_s - at_s))
    return tuple(found)
