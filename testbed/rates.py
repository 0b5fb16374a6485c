"""How much passes a link: a token bucket (``tc tbf``), and one that several links share. Knows links, not devices.

A bucket fills at the rate asked for and holds ``burst`` bytes; a packet passes when the bucket holds its size, and
waits in a queue until then.

* *burst*: what may pass at once after a pause. Too large, and a short transfer is faster than the link it stands for;
  too small, and a bucket that is full before the kernel looks again loses what would have flowed into it. The kernel
  has precise timers, and on a busy machine looks a few milliseconds late: the burst is what flows in ``BURST_MS``, and
  never less than two full frames.
* *queue*: what waits. A device's own uplink holds all that its programs have under way (``OWN_QUEUE_FRAMES``, as a
  network card does): they are slowed, nothing is lost. A downlink has what a small switch or a home router has,
  ``QUEUE_MS``; what arrives faster is dropped once that is full, which is how the senders' TCP learns of it. It never
  has less than ``QUEUE_FRAMES``: the kernel hands over up to 64 kB at once, and half of that would be lost each time.

The rate is that of the wire, headers included, as when a link is called "100 Mb/s": of it TCP carries 95.6 % as payload
in frames of 1,500 bytes (1,448 of 1,514).
"""

from __future__ import annotations

from contextlib import suppress

from testbed.commands import NoNamespaces, ip, tc

FRAME_BYTES = 1_514
#: Of a full frame: 14 bytes are Ethernet's, 20 IP's, 32 TCP's with its timestamp.
PAYLOAD_SHARE = 1_448 / FRAME_BYTES

BURST_MS = 4.0
QUEUE_MS = 50.0
QUEUE_FRAMES = 64
OWN_QUEUE_FRAMES = 1_000

#: Less than this is no link, more than this is not held by a token bucket on a shared machine.
RATE_LEAST_MBPS, RATE_MOST_MBPS = 0.1, 10_000.0


def bucket(mbps: float, *, queue_frames: int = QUEUE_FRAMES) -> tuple[str, ...]:
    """The words that make tc shape a link to this rate, with room for at least so many frames."""
    if not RATE_LEAST_MBPS <= mbps <= RATE_MOST_MBPS:
        raise NoNamespaces(f"a link carries {RATE_LEAST_MBPS:g} to {RATE_MOST_MBPS:g} Mb/s, not {mbps:g}")
    bytes_per_ms = mbps * 1e6 / 8 / 1000
    burst_bytes = max(round(bytes_per_ms * BURST_MS), 2 * FRAME_BYTES)
    queue_bytes = max(round(bytes_per_ms * QUEUE_MS), queue_frames * FRAME_BYTES)
    return ("tbf", "rate", f"{round(mbps * 1e6)}bit", "burst", str(burst_bytes), "limit", str(queue_bytes))


def shape(link: str, mbps: float, *, inside: tuple[str, ...] = (), queue_frames: int = QUEUE_FRAMES) -> None:
    """Let this much leave by a link; called again, the new figure holds. ``inside``: the words for its namespace."""
    words = bucket(mbps, queue_frames=queue_frames)
    # Not changed in place: a packet that waits and is larger than the new burst would wait, and block, for ever.
    unshape(link, inside=inside)
    tc(*inside, "qdisc", "add", "dev", link, "root", *words)


def unshape(link: str, *, inside: tuple[str, ...] = ()) -> None:
    # There may be no limit to take away.
    with suppress(NoNamespaces):
        tc(*inside, "qdisc", "del", "dev", link, "root")


# One rate for all: airtime --------------------------------------------------------------------------------


def make_medium(medium: str, mbps: float) -> None:
    """A link that only shapes (an *intermediate functional block*): frames sent through it go on where they were."""
    ip("link", "add", medium, "type", "ifb")
    ip("link", "set", medium, "up")
    shape(medium, mbps)


def through_medium(medium: str, link: str, *, arriving: bool) -> None:
    """What arrives by a link, or else leaves by it, takes its turn in the medium first."""
    tc("qdisc", "replace", "dev", link, "clsact")
    every_frame = ("protocol", "all", "u32", "match", "u32", "0", "0")
    redirect = ("action", "mirred", "egress", "redirect", "dev", medium)
    tc("filter", "add", "dev", link, "ingress" if arriving else "egress", *every_frame, *redirect)
