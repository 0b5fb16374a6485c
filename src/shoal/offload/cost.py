"""Whether a product is worth sending: its duration here, and away. Pure; measures nothing itself.

A product of (n, k) by (k, m) takes n·k·m multiply-adds, and moves about n·k + k·m + n·m values. So it pays for layers
that are wide, in both directions, and for many rows at once; and only where this device is slow compared with its link.

    at home    n·k·m · t
    away       prepare + there and back + max(link, pool) + check

*prepare* and *check* are done here: masks, Freivalds' sums. The link is as fast as this device moves bytes to the pools
and back, its own work for them included (frames, encryption): on a small device that is the processor's time, and
both directions take their part of it. Link and pool work at the same time, tile by tile, so that the slower one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from shoal.errors import Misuse
from shoal.offload.masking import LIMBS
from shoal.offload.products import Advert, Secret

Privacy = Literal["none", "shuffle", "mask"]
#: ``spot``: by Freivalds, and less often for executors that have earned trust.
Verify = Literal["freivalds", "replicate", "spot", "none"]

VALUE_BYTES = 4
#: Of a digit of a public right side; a value has one digit for each limb.
DIGIT_BYTES = 2
#: How often a task is done when results are compared.
REPLICAS = 3
#: Masking is between two pools; each gets a share and computes all of it.
MASK_POOLS = 2
#: A guess that is wrong by less than this must not send anything.
MARGIN = 1.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The shape of a product: (rows, inner) by (inner, columns)."""

    rows: int
    inner: int
    columns: int

    def __post_init__(self) -> None:
        if min(self.rows, self.inner, self.columns) < 1:
            raise Misuse(f"a product of {self.rows} x {self.inner} by {self.inner} x {self.columns} has no values")

    @property
    def operations(self) -> int:
        return self.rows * self.inner * self.columns

    @property
    def left(self) -> int:
        return self.rows * self.inner

    @property
    def right(self) -> int:
        return self.inner * self.columns

    @property
    def result(self) -> int:
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"{self.rows} x {self.inner} by {self.inner} x {self.columns}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """The measured costs of this device, in seconds each."""

    #: One multiply-add of a float32 product.
    operation_s: float
    #: One byte sent or received, at least: it is copied and encrypted, on however fast a link.
    byte_s: float
    #: One value of ``left`` or of a result, under Freivalds' check; one of ``right``, once for each version of it.
    check_s: float
    probe_s: float
    #: One value of ``left``, to fixed point and under a mask.
    mask_s: float
    #: One value of a result, out of two shares.
    unmask_s: float
    #: The same of whole numbers; ``right`` is made such numbers too.
    check_exactly_s: float
    probe_exactly_s: float
    #: How many times as long a product of shares takes as the same one of float32; taken to hold for executors too.
    share_factor: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """The bytes that the client sends and receives for one product."""

    bytes_out: int
    bytes_in: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether to send, and why."""

    sends: bool
    reason: str
    home_s: float
    #: None if it cannot be sent at all.
    away_s: float | None = None
    #: The part of ``away_s`` for masks and checks. It remains even if the link and the pool take no time.
    own_s: float = 0.0
    link_s: float = 0.0
    pool_s: float = 0.0
    traffic: Traffic = Traffic(bytes_out=0, bytes_in=0)
    #: By which the seconds away were multiplied.
    pace: float = 1.0

    @property
    def speedup(self) -> float:
        return self.home_s / self.away_s if self.sends and self.away_s else 1.0


def check_modes(privacy: str, verify: str) -> None:
    if privacy not in get_args(Privacy):
        raise Misuse(f"privacy is {', '.join(get_args(Privacy))}; not {privacy!r}")
    if verify not in get_args(Verify):
        raise Misuse(f"verify is {', '.join(get_args(Verify))}; not {verify!r}")


def traffic(shape: Shape, *, masked: bool, verify: Verify) -> Traffic:
    """The right one goes to each pool once; its broker hands it on. Seeds and message framing are not counted.

    Masked: one pool gets a share as large as ``left`` and the other a seed; both return a result, two numbers a value.
    """
    times = REPLICAS if verify == "replicate" else 1
    left, right, result = VALUE_BYTES * shape.left, VALUE_BYTES * shape.right, VALUE_BYTES * shape.result
    if masked:
        right = MASK_POOLS * LIMBS * DIGIT_BYTES * shape.right
        result = MASK_POOLS * LIMBS * VALUE_BYTES * shape.result
    return Traffic(bytes_out=times * left + right, bytes_in=times * result)


def home_seconds(shape: Shape, home: Home) -> float:
    return shape.operations * home.operation_s


def own_seconds(shape: Shape, home: Home, *, masked: bool, verify: Verify) -> float:
    """This device's own work for a product that is sent, beside moving bytes: masks and checks."""
    own_s = 0.0
    if masked:
        own_s += shape.left * home.mask_s + shape.result * home.unmask_s
    if verify in ("freivalds", "spot"):
        checked, probed = (home.check_exactly_s, home.probe_exactly_s) if masked else (home.check_s, home.probe_s)
        own_s += (shape.left + shape.result) * checked + shape.right * probed
    return own_s


def spread_seconds(shape: Shape, pool: Advert, *, masked: bool) -> float:
    """Until every executor has the right side: its broker sends it to each, over a link like ours, we assume."""
    size = LIMBS * DIGIT_BYTES if masked else VALUE_BYTES
    return pool.executors * size * shape.right / pool.bytes_per_s if pool.bytes_per_s > 0 else 0.0


def pool_seconds(shape: Shape, home: Home, pool: Advert, *, masked: bool, verify: Verify) -> float:
    times = REPLICAS if verify == "replicate" else 1
    factor = MASK_POOLS * home.share_factor if masked else 1.0
    # A row is the least that one executor can take.
    busy = min(1.0, times * shape.rows / max(pool.executors, 1))
    return times * factor * shape.operations / (pool.operations_per_s * busy)


def worth(
    shape: Shape,
    secret: Secret,
    *,
    home: Home,
    pool: Advert,
    privacy: Privacy,
    verify: Verify,
    pace: float = 1.0,
) -> Verdict:
    """Decide whether to send a product or compute it here, with the seconds of both and the reason.

    ``pace`` is how many times as long as estimated here earlier products took, if known.
    """
    check_modes(privacy, verify)
    home_s = home_seconds(shape, home)
    masked = privacy == "mask" and secret != "none"
    if masked and secret == "both":
        return Verdict(sends=False, reason="both sides are secret, and a mask hides one", home_s=home_s)
    if masked and pool.pools < MASK_POOLS:
        reason = f"masking takes {MASK_POOLS} pools that do not collude; there is {pool.pools}"
        return Verdict(sends=False, reason=reason, home_s=home_s)
    if pool.executors < 1 or pool.operations_per_s <= 0:
        return Verdict(sends=False, reason="the pool has no executor", home_s=home_s)
    moved = traffic(shape, masked=masked, verify=verify)
    own_s = own_seconds(shape, home, masked=masked, verify=verify)
    # Not known before the first product: that will tell, and it is weighed again.
    link_s = (moved.bytes_out + moved.bytes_in) / pool.bytes_per_s if pool.bytes_per_s > 0 else 0.0
    pool_s = spread_seconds(shape, pool, masked=masked) + pool_seconds(shape, home, pool, masked=masked, verify=verify)
    away_s = pace * (own_s + pool.latency_s + max(link_s, pool_s))
    sends = away_s * MARGIN < home_s
    return Verdict(
        sends=sends,
        reason=_reason(home_s, away_s, sends=sends, own_s=own_s, link_s=link_s, pool_s=pool_s, pool=pool),
        home_s=home_s,
        away_s=away_s,
        own_s=own_s,
        link_s=link_s,
        pool_s=pool_s,
        traffic=moved,
        pace=pace,
    )


def _reason(
    home_s: float, away_s: float, *, sends: bool, own_s: float, link_s: float, pool_s: float, pool: Advert
) -> str:
    if sends:
        return f"{home_s / away_s:.1f} times as fast away: {_time(away_s)} against {_time(home_s)}"
    parts = {
        "masks and checks here": own_s,
        f"the link ({pool.bytes_per_s * 8 / 1e6:,.0f} Mb/s)": link_s if link_s >= pool_s else 0.0,
        "the pool": pool_s if pool_s > link_s else 0.0,
        "there and back": pool.latency_s,
    }
    most = max(parts, key=lambda name: parts[name])
    return f"{_time(home_s)} here, {_time(away_s)} away, of which {_time(parts[most])} {most}"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def link_rate(mbps: float, home: Home) -> float:
    """Return the bytes per second of a link of ``mbps``, including this device's own work for them."""
    return 1 / (8 / (mbps * 1e6) + home.byte_s)
