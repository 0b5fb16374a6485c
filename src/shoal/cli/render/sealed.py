"""What a sealed plan costs and what its leader still learns, in sentences. Pure; asks nobody."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.cli.render.format import bytes_text, plural
from shoal.compress.codec import Codec
from shoal.plan import Plan
from shoal.sealing.graph import COMPLETE_MAX, GROUP_MAX, GraphShape, shape_of
from shoal.sealing.group import COMMIT_BYTES, MAC_BYTES, TAG_BYTES
from shoal.sealing.shamir import SHARE_BYTES

#: Milliseconds of one core for a value, as measured: to add a mask of 32 bits, to round it (``benchmarks.trust``), and
#: to hash the model that was trained on.
_MASK_MS, _ROUND_MS, _HASH_MS = 1.5e-6, 4e-6, 1e-5

#: The same to round a value so that the length of an update is kept and to draw its noise, as
#: ``benchmarks.trust_shares`` measured it.
_NOISE_MS = 1.2e-4


def extra_bytes(shape: GraphShape) -> int:
    """What a device sends for a version beside its words: seals, MACs and shares."""
    near = shape.neighbours
    envelopes = near * (SHARE_BYTES + TAG_BYTES) + near * (SHARE_BYTES * (near - 1) + TAG_BYTES)
    return COMMIT_BYTES * (1 + near) + envelopes + near * (MAC_BYTES + SHARE_BYTES)


def sealed_facts(plan: Plan, *, devices: int, model_bytes: float) -> Iterator[tuple[str, str]]:
    sealed = plan.believes.sealed
    assert sealed is not None
    least, is_private = plan.opened_least, plan.privacy is not None
    if devices < least:
        yield "trust", f"{plan.trust}: waits for {least} devices, since fewer do not hide each other"
        devices = least
    if is_private:
        # A version has at most a cohort.
        devices = min(devices, plan.cohort)
    shape = shape_of(min(devices, GROUP_MAX), sealed.colluding, sealed.lost)
    each = "every other" if shape.is_complete else f"{shape.neighbours} neighbours"
    yield (
        "trust",
        f"{plan.trust}: of {plural(shape.devices, 'device')} each masks with {each}; {shape.threshold} of them open a"
        " mask",
    )
    values, mask_ms = model_bytes / 4, _MASK_MS * Codec.parse(plan.codec).word_bits / 32
    rounding_ms = _NOISE_MS if is_private else _ROUND_MS
    device_ms = values * (_HASH_MS + rounding_ms + (1 + shape.neighbours) * mask_ms)
    leader_ms = values * (_HASH_MS + mask_ms * shape.devices)
    yield (
        "costs",
        f"about {device_ms:.0f} ms of a core more a version on a device and {leader_ms:.0f} ms at the leader;"
        f" {bytes_text(extra_bytes(shape))} more up a device, and two short questions",
    )
    lying = "also if it lies" if shape.devices <= COMPLETE_MAX else "if it follows the protocol"
    yield (
        "learns",
        f"the leader sees sums of at least {least} devices, "
        + (
            f"never one without noise, {lying}; and who took part when. The promise is to it as well"
            if is_private
            else f"{lying}; and who took part, with how many examples and what loss"
        ),
    )
    tells = "" if is_private else ". Nor what sums of versions tell"
    yield "stops not", f"a device that lies: nobody can see which one spoilt a sum{tells}"
