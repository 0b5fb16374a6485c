"""The faults that make a device unfit, found from facts: each check is a pure function. Probing the device is `probes`'
work.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from shoal.cli.findings import Finding, fail, note, ok, warn
from shoal.cli.render.format import bytes_text, clean, span_text

PYTHON_MIN = (3, 11)

#: 2.10.0 dies with SIGILL on ARMv8.0 boards; 2.9.1 and older carry CVE-2026-24747.
TORCH_MIN = (2, 11)
TORCH_SIGILL = (2, 10)
TORCH_CVE_UNTIL = (2, 9, 1)

MB = 1 << 20
GB = 1 << 30

#: PyTorch's process needs about 300 MB beside the agent's 60 and the system's own.
MEMORY_MIN_BYTES = 480 * MB
MEMORY_FREE_WARN_BYTES = 400 * MB

#: A job's data, code and checkpoints.
DISK_MIN_BYTES = 200 * MB
DISK_WARN_BYTES = 1 * GB
FSYNC_WARN_S = 1.0

#: Two vectors of a ten-million-number model: what an agent and its trainer share.
SHARED_WARN_BYTES = 80 * MB

OPEN_FILES_MIN = 128
OPEN_FILES_WARN = 1024

#: No release of Shoal is older than this: a clock before it has never been set.
OLDEST_SANE_S = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
CLOCK_SLACK_S = 3600.0
#: A manager renews its certificate when a third of its life is left: so close to its end, something is wrong.
EXPIRY_WARN_S = 86_400.0

_CPU_BUILD = (
    "install PyTorch's CPU build: give pip the option --index-url with the CPU index that PyTorch's own"
    " installation page names"
)
_UPGRADE = f"install PyTorch {TORCH_MIN[0]}.{TORCH_MIN[1]} or newer"
#: PyTorch 2.10.0 needs these of an ARM processor without asking.
_ARM_FEATURES = ("atomics", "asimddp")


# The interpreter and PyTorch ----------------------------------------------------------------------------------


def check_python(version: tuple[int, ...], *, bits: int) -> Finding:
    told = f"Python {'.'.join(map(str, version[:3]))}, {bits} bit"
    if version[:2] < PYTHON_MIN:
        return fail("python", told, f"install Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or newer")
    if bits < 64:
        return warn(
            "python",
            told,
            "PyTorch has no build for a 32-bit system, so this device cannot train: install a 64-bit system on it",
        )
    return ok("python", told)


def check_packages(missing: Mapping[str, str]) -> Finding:
    """``missing`` names each package that cannot be imported, and why."""
    if not missing:
        return ok("packages", "gRPC, numpy, cryptography and protobuf are there")
    told = ", ".join(f"{name} ({clean(reason, 120)})" for name, reason in sorted(missing.items()))
    return fail(
        "packages",
        f"cannot import {told}",
        "install Shoal again, from where you have it: pip install --force-reinstall PATH",
    )


def check_discovery(*, is_installed: bool) -> Finding:
    if is_installed:
        return ok("discovery", "zeroconf is there, for `shoal flock`, `up --announce` and `join --find`")
    # Most devices never need it.
    return note(
        "discovery",
        "zeroconf is not installed: `shoal flock`, `up --announce` and `join --find` need it (pip install zeroconf)",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchFacts:
    """PyTorch as its files describe it, before any of its code has run. ``version`` is empty where there is none."""

    version: str
    cuda: str = ""
    has_gpu: bool = False


def check_torch(facts: TorchFacts) -> Finding:
    if not facts.version:
        return warn(
            "torch",
            "PyTorch is not installed: this device can manage and lead, not train",
            f"pip install 'torch>={TORCH_MIN[0]}.{TORCH_MIN[1]}'",
        )
    number = version_of(facts.version)
    told = f"PyTorch {clean(facts.version, 40)}"
    if number <= TORCH_CVE_UNTIL:
        return fail("torch", f"{told} carries CVE-2026-24747: a model file can run code", _UPGRADE)
    if number[:2] == TORCH_SIGILL:
        return fail("torch", f"{told} dies with SIGILL on ARMv8.0 processors, such as a Raspberry Pi 3 or 4", _UPGRADE)
    if facts.cuda and not facts.has_gpu:
        return warn(
            "torch",
            f"{told} is a build for NVIDIA GPUs (CUDA {clean(facts.cuda, 16)}), and no such GPU is here:"
            " it costs gigabytes of disk and memory for nothing",
            _CPU_BUILD,
        )
    if facts.has_gpu and not facts.cuda:
        return note("torch", f"{told} is a build without CUDA, so it does not use the NVIDIA GPU of this device")
    return ok("torch", told)


def version_of(text: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` -> (2, 13, 0); what cannot be read is taken as the oldest."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else (0,)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """How a process ended that imported torch and multiplied two small matrices."""

    exit_code: int | None
    seconds: float = 0.0
    last_words: str = ""
    #: The kind of processor that was used, such as ``cuda``; empty if it is not known.
    device: str = ""


def check_torch_runs(facts: RunFacts, *, cpu: CpuFacts) -> Finding:
    name = "torch runs"
    match facts.exit_code:
        case 0:
            where = f" on {clean(facts.device, 16)}" if facts.device else ""
            return ok(name, f"imports and multiplies{where} in {span_text(facts.seconds)}")
        case None:
            return fail(
                name,
                f"PyTorch was not ready after {span_text(facts.seconds)}",
                "is the device swapping, or its disk failing? Free memory and try again",
            )
        case code if code == -signal.SIGILL:
            missing = [feature for feature in wanted_features(cpu.arch) if feature not in cpu.features]
            lacks = f"; it lacks {', '.join(missing)}" if missing else ""
            return fail(
                name,
                f"PyTorch used an instruction that this processor ({cpu.arch}) does not have (SIGILL){lacks}",
                f"{_UPGRADE}; if it is that already, this build is not for this processor: try its CPU build, or let"
                " this device manage and lead instead",
            )
        case code if code == -signal.SIGKILL:
            return fail(
                name,
                "the system killed PyTorch as it started (SIGKILL), most likely for want of memory",
                "free memory, add swap, or use a device with 1 GB or more",
            )
        case _ if facts.last_words.startswith("--device"):
            # The choice that `shoal join --device` or the environment made.
            return fail(name, clean(facts.last_words, 200), "choose another: shoal join --device auto")
        case code:
            words = clean(facts.last_words, 200) or f"exit code {code}"
            return fail(name, f"PyTorch does not start: {words}", f"{_UPGRADE}, in a fresh virtual environment")


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuFacts:
    arch: str
    features: frozenset[str] = frozenset()
    cores: int = 1


def wanted_features(arch: str) -> tuple[str, ...]:
    return {"aarch64": _ARM_FEATURES, "arm64": _ARM_FEATURES, "x86_64": ("avx2",), "amd64": ("avx2",)}.get(
        arch.lower(), ()
    )


def check_cpu(facts: CpuFacts) -> Finding:
    told = f"{facts.arch}, {facts.cores} cores"
    if not facts.features:
        return note("cpu", f"{told}; the system does not list its features")
    missing = [feature for feature in wanted_features(facts.arch) if feature not in facts.features]
    if not missing:
        return ok("cpu", told)
    return warn(
        "cpu",
        f"{told}, without {' and '.join(missing)}: training is slower, and some builds of PyTorch do not run",
        f"{_UPGRADE}, which runs without them; expect this device to be slow",
    )


# The network --------------------------------------------------------------------------------------------------

#: What became of an attempt to connect, told apart because what to do differs.
Reach = Literal["open", "refused", "timeout", "unknown-host", "no-route", "error"]
Listen = Literal["free", "busy", "forbidden", "no-address"]


def check_listen(
    outcome: Listen, *, port: int, purpose: str, manager_runs: bool = False, other_cluster: str = "", home: str = ""
) -> Finding:
    """``other_cluster``: the manager of this cluster serves there, and it is not the one of this ``home``."""
    name = f"port {port}"
    match outcome:
        case "free":
            return ok(name, f"can be listened on, for {purpose}")
        case "busy" if manager_runs:
            return ok(name, "in use by this home's own manager")
        case "busy" if other_cluster:
            return warn(
                name,
                f"a manager of cluster {clean(other_cluster, 63)} listens on it, with another home than {clean(home)}",
                "if that is the one you mean, name its home: shoal doctor --home DIR; a second manager here needs ports"
                " of its own: shoal up --port N",
            )
        case "busy":
            return fail(
                name,
                f"another program listens on it, and `shoal up` needs it for {purpose}",
                "stop that program, or choose another pair of ports: shoal up --port N",
            )
        case "forbidden":
            return fail(name, "this user may not listen on it", "choose a port of 1024 or more: shoal up --port N")
        case _:
            return fail(name, "this machine does not have that address", "choose another one: shoal up --host ADDRESS")


def check_proxies(variables: Sequence[str]) -> Finding:
    """``variables``: those of the environment that name a proxy."""
    if not variables:
        return ok("proxy", "no proxy is set")
    told = f"{' and '.join(variables)}: Shoal does not use a proxy to reach managers, leaders and devices"
    return note("proxy", f"{told}, only for downloads from the internet")


def check_families(*, has_ipv6: bool) -> Finding:
    if has_ipv6:
        return ok("IPv6", "`shoal up` listens on IPv4 and IPv6")
    return note("IPv6", "this system has no IPv6: `shoal up` listens on IPv4 only, so advertise an IPv4 address")


def check_reach(outcome: Reach, *, endpoint: str, purpose: str, seconds: float = 0.0) -> Finding:
    name = f"reach {endpoint}"
    host, _, port = endpoint.rpartition(":")
    match outcome:
        case "open":
            return ok(name, f"answers in {seconds * 1000:.0f} ms, for {purpose}")
        case "refused":
            return fail(
                name,
                f"{host} is there, and nothing listens on port {port} ({purpose})",
                "is `shoal up` running there, with this port? Start it, or ask for a new join line",
            )
        case "timeout":
            return fail(
                name,
                f"no answer within {span_text(seconds)}: most likely a firewall drops port {port} ({purpose})",
                f"open TCP port {port} on {host} and on what lies between; check that both are on one network",
            )
        case "unknown-host":
            return fail(name, f"no such host: {host}", "use its address instead of its name, or mend the name service")
        case "no-route":
            return fail(name, f"this device has no way to {host}", "is it on a network, and on the right one?")
        case _:
            return fail(name, "the connection failed", "is the address right, and is `shoal up` running there?")


# Time ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockFacts:
    """Times in seconds since 1970. Certificates are valid since then, so a clock that lags is borne.

    Leases are spans, so clocks need not agree. What breaks is TLS, when this clock is ahead of a certificate's end, and
    that is what is compared.
    """

    now_s: float
    #: The newest file Shoal installed or wrote here: the present cannot be before it.
    newest_file_s: float = 0.0
    not_before_s: float | None = None
    not_after_s: float | None = None
    #: What TLS said when it refused the manager's certificate.
    refused: Literal["", "not-yet-valid", "expired"] = ""


def check_clock(facts: ClockFacts) -> Finding:
    told = f"this device says {_date(facts.now_s)}"
    set_it = "set the clock: turn on NTP (timedatectl set-ntp true), or give a board without a battery an RTC"
    if facts.now_s < OLDEST_SANE_S:
        return warn("clock", f"{told}: it was never set; Shoal bears it, other programs may not", set_it)
    if facts.now_s < facts.newest_file_s - CLOCK_SLACK_S:
        behind = span_text(facts.newest_file_s - facts.now_s)
        return fail("clock", f"{told}, and a file of Shoal here is {behind} younger", set_it)
    if facts.refused == "not-yet-valid" or (facts.not_before_s is not None and facts.now_s < facts.not_before_s):
        begins = f" (it begins {_date(facts.not_before_s)})" if facts.not_before_s else ""
        return fail("clock", f"{told}: the manager's certificate is not valid yet{begins}", set_it)
    if facts.refused == "expired" or (facts.not_after_s is not None and facts.now_s > facts.not_after_s):
        ended = f" (it ended {_date(facts.not_after_s)})" if facts.not_after_s else ""
        return fail(
            "clock",
            f"{told}: the manager's certificate is over{ended}",
            f"{set_it}; if the clock is right, start `shoal up` again: it renews its certificate",
        )
    if facts.not_after_s is not None and facts.not_after_s - facts.now_s < EXPIRY_WARN_S:
        left = span_text(facts.not_after_s - facts.now_s)
        see = "it renews itself while `shoal up` runs: look at the log there"
        return warn("clock", f"{told}; the manager's certificate ends in {left}", see)
    agrees = ", within the manager's certificate" if facts.not_before_s is not None else ""
    return ok("clock", told + agrees)


def check_membership(problem: str) -> Finding:
    """``problem`` is why this device's own certificate does not hold; empty if it does."""
    if not problem:
        return ok("membership", "this device's certificate is valid")
    return fail("membership", clean(problem, 300), "mend what it says, or remove the node folder and join again")


def _date(at_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return "a date beyond the calendar"


# Room ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskFacts:
    name: str
    path: str
    free_bytes: int = 0
    #: Seconds to write and fsync a small file, or why that failed.
    fsync_s: float = 0.0
    error: str = ""


def check_disk(facts: DiskFacts) -> Finding:
    name = f"disk ({facts.name})"
    told = f"{bytes_text(facts.free_bytes)} free in {facts.path}"
    if facts.error:
        return fail(
            name,
            f"cannot write in {facts.path}: {clean(facts.error, 120)}",
            "make it writable, free space there, or use another folder: --home DIR or SHOAL_HOME for the home, TMPDIR"
            " for temporary files",
        )
    if facts.free_bytes < DISK_MIN_BYTES:
        return fail(name, told, f"free at least {bytes_text(DISK_MIN_BYTES)}: a job's data and checkpoints go there")
    if facts.free_bytes < DISK_WARN_BYTES:
        return warn(name, told, "enough for small jobs; free some space before a large one")
    if facts.fsync_s > FSYNC_WARN_S:
        return warn(
            name,
            f"{told}; a small durable write took {span_text(facts.fsync_s)}",
            "a worn memory card does this: expect slow checkpoints, and replace it before it fails",
        )
    return ok(name, told)


def check_memory(total_bytes: int, free_bytes: int) -> Finding:
    told = f"{bytes_text(free_bytes)} of {bytes_text(total_bytes)} free"
    if total_bytes < MEMORY_MIN_BYTES:
        return warn("memory", told, "too little for PyTorch: let this device manage or lead, not train")
    if free_bytes < MEMORY_FREE_WARN_BYTES:
        return warn("memory", told, "PyTorch needs about 300 MB: end other programs, or add swap")
    return ok("memory", told)


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedMemoryFacts:
    """Whether an agent can share memory with its trainer. With memfd, the size of /dev/shm does not bound it."""

    error: str = ""
    has_memfd: bool = True
    #: None where the system has no /dev/shm.
    shm_free_bytes: int | None = None


def check_shared_memory(facts: SharedMemoryFacts) -> Finding:
    name, room = "shared memory", facts.shm_free_bytes
    if facts.error:
        return fail(
            name,
            f"an agent cannot share memory with its trainer: {clean(facts.error, 160)}",
            "free memory; in a container, raise its memory limit",
        )
    if facts.has_memfd:
        return ok(name, "usable, and not bounded by /dev/shm")
    if room is not None and room < SHARED_WARN_BYTES:
        return warn(
            name,
            f"{bytes_text(room)} free in /dev/shm: two copies of a large model do not fit",
            "in a container, give --shm-size=256m or more",
        )
    return ok(name, "usable, through temporary files" if room is None else f"usable, {bytes_text(room)} in /dev/shm")


def check_open_files(soft: int, *, devices: int = 0) -> Finding:
    """``soft``: after Shoal has raised it; negative: no limit. ``devices``: how many a manager here could serve."""
    told = f"a process may open {soft:,} files" if soft >= 0 else "a process may open any number of files"
    if devices:
        told += f": a manager here serves {devices:,} devices at once"
    if 0 <= soft < OPEN_FILES_MIN:
        return fail("open files", told, f"raise the limit: ulimit -n {OPEN_FILES_WARN}")
    if 0 <= soft < OPEN_FILES_WARN:
        return warn("open files", told, f"enough for a device; a manager of many needs ulimit -n {OPEN_FILES_WARN}")
    return ok("open files", told)


# A device's own examples -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnDataFacts:
    """The folder of a device's own examples, and what of it the trainer's user cannot read."""

    folder: str
    #: The user that the trainer becomes, and whether it differs from the agent's user.
    user: str
    changes_user: bool = False
    is_folder: bool = True
    #: The folder on the way there, or the folder itself, that lets this user no further.
    closed: str = ""
    #: The first file or folder inside that it cannot read.
    unreadable: str = ""
    files: int = 0
    #: There may be more than were looked at.
    all_seen: bool = True


def check_own_data(facts: OwnDataFacts) -> Finding:
    name = "own examples"
    folder, user = clean(facts.folder), clean(facts.user, 40)
    if not facts.is_folder:
        return fail(name, f"there is no folder {folder}", "make it, or name another: shoal join --data FOLDER")
    if facts.closed and facts.changes_user:
        closed = clean(facts.closed)
        # Not a failure: what cannot be read as another user is read as root, and the log says so.
        return warn(
            name,
            f"{user} cannot go into {closed}, so that task code runs as root here to read {folder}",
            f"keep the examples where {user} can go, such as /srv; or let it in: "
            f"chmod {'o+rx' if closed == folder else 'o+x'} {closed}",
        )
    if facts.closed or facts.unreadable:
        which = clean(facts.closed or facts.unreadable)
        return fail(
            name,
            f"{user}, who runs task code here, cannot read {which}",
            f"let {user} read it: chmod -R o+rX {folder}; and files that come later too (umask 022)"
            if facts.changes_user
            else f"let {user} read it, or run the agent as the user whose files they are",
        )
    count = f"{facts.files:,}{'' if facts.all_seen else ' or more'} {'file' if facts.files == 1 else 'files'}"
    return ok(name, f"{folder}: {user} can read {count if facts.files else 'it, and it is empty so far'}")


# What private jobs have told ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyFacts:
    """What all private jobs together have spent of this device's person."""

    jobs: int = 0
    epsilon: float = 0.0
    delta: float = 0.0
    #: What its owner allows over all jobs; infinite: nothing was said.
    limit: float = math.inf
    #: Why the accounts cannot be added up.
    problem: str = ""


def check_privacy(facts: PrivacyFacts) -> Finding:
    name = "privacy"
    if facts.problem:
        return fail(name, clean(facts.problem), "until then this device takes no part in private jobs")
    told = f"{facts.jobs} private job{'s' * (facts.jobs != 1)} spent an epsilon of {facts.epsilon:.3g}"
    told += f" together, delta {facts.delta:.2g}"
    if facts.limit == math.inf:
        return ok(name, f"{told}; its owner set no limit: shoal join --max-epsilon E")
    left = facts.limit - facts.epsilon
    told += f", of {facts.limit:g} that its owner allows"
    if left <= 0.01 * facts.limit:
        return warn(name, told, "this device refuses private jobs from now on; a higher --max-epsilon lets it in")
    return ok(name, told)
