"""What a sealed plan costs and what its leader still learns, in sentences. Pure; asks nobody."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.cli.render.format import bytes_text, plural
from shoal.compress.codec import Codec
from shoal.plan import Plan
from shoal.sealing.figures import FIGURE_BYTES, FIGURES
from shoal.sealing.graph import GROUP_MAX, GraphShape, shape_of
from shoal.sealing.group import COMMIT_BYTES, HELPER_ENVELOPE_BYTES, MAC_BYTES, TAG_BYTES
from shoal.sealing.shamir import SHARE_BYTES
from shoal.trust import MANAGER_DECIDES
from shoal.wire.coded import encode_places_bytes, entries_max

#: Milliseconds of one core for a value, as measured: to add a mask of 32 bits, to round it (``benchmarks.trust``), and
#: to hash the model that was trained on.
_MASK_MS, _ROUND_MS, _HASH_MS = 1.5e-6, 4e-6, 1e-5

#: The same to round a value so that the length of an update is kept and to draw its noise, as
#: ``benchmarks.trust_shares`` measured it.
_NOISE_MS = 1.8e-4

#: What a leader that lies can still do.
_CRAFTED = ". A leader that lies sees no more than sums, but a crafted model can show single examples in one"


def members_note(plan: Plan, *, is_led_by_manager: bool = False) -> str:
    """Return what the manager can do to the members of a sealed plan, or nothing if the plan is not sealed."""
    sealed = plan.believes.sealed
    if sealed is None:
        return ""
    if sealed.members is None:
        leads = ". It also leads this job" if is_led_by_manager else ""
        return f"{MANAGER_DECIDES}{leads}. `members=` in the plan prevents that (docs/sealed.md)"
    return (
        f"Only devices with a card of the operator whose key they pinned are members: about {sealed.members}, of which"
        f" {sealed.liars_of(sealed.members)} may collude. The manager cannot add one"
    )


def extra_bytes(shape: GraphShape) -> int:
    """Return how many bytes a device sends per version beside its words: seals, figures, MACs and shares."""
    near = shape.neighbours
    envelopes = near * (SHARE_BYTES + TAG_BYTES) + near * (SHARE_BYTES * (near - 1) + TAG_BYTES)
    answers = (shape.devices - 1) * MAC_BYTES + near * SHARE_BYTES
    return COMMIT_BYTES * (1 + near) + envelopes + FIGURES * FIGURE_BYTES + answers


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
    yield "members", members_note(plan)
    if sealed.helper is not None:
        yield from _helped_facts(plan, sealed.helper, devices=min(devices, GROUP_MAX), model_bytes=model_bytes)
        return
    group = min(devices, GROUP_MAX)
    shape = shape_of(group, sealed.liars_of(group), sealed.lost)
    each = "every other" if shape.is_complete else f"{shape.neighbours} neighbours"
    yield (
        "trust",
        f"{plan.trust}: of {plural(shape.devices, 'device')} each masks with {each}; {shape.threshold} of them open a"
        " mask",
    )
    codec, values, words = _words_of(plan, model_bytes)
    mask_ms, rounding_ms = _word_ms(plan, codec)
    device_ms = values * _HASH_MS + words * (rounding_ms + (1 + shape.neighbours) * mask_ms)
    leader_ms = values * _HASH_MS + words * mask_ms * shape.devices
    yield (
        "costs",
        f"about {device_ms:.0f} ms of a core more a version on a device and {leader_ms:.0f} ms at the leader;"
        f" {bytes_text(extra_bytes(shape))} more up a device, and two short questions",
    )
    yield from _places_facts(codec, round(values), words)
    yield (
        "learns",
        f"the leader sees sums of at least {least} devices, "
        + (
            "never one without noise; and who took part when. The promise is to it as well"
            if is_private
            else "and who took part, with how many examples"
        )
        + ("" if is_private else _CRAFTED),
    )
    if plan.topology != "star":
        yield (
            "meet",
            "aggregators add up masked words and learn nothing of any update; one that is lost before its sum came"
            " costs a round, later nothing",
        )
    tells = "" if is_private else ". Nor what sums of versions tell"
    yield "stops not", f"a device that lies: nobody can see which one spoilt a sum{tells}"


def _words_of(plan: Plan, model_bytes: float) -> tuple[Codec, float, int]:
    """The codec of a plan, the values of the model, and how many of them a device masks."""
    codec, values = Codec.parse(plan.codec), model_bytes / 4
    return codec, values, entries_max(codec, (max(1, round(values)),))


def _word_ms(plan: Plan, codec: Codec) -> tuple[float, float]:
    """Return the milliseconds that a device takes to mask a word once, and to round it."""
    return _MASK_MS * codec.word_bits / 32, _ROUND_MS if plan.privacy is None else _NOISE_MS


def _places_facts(codec: Codec, values: int, words: int) -> Iterator[tuple[str, str]]:
    if codec.form == "led":
        most = encode_places_bytes(codec, values)
        yield (
            "places",
            f"{words:,} of {values:,} values a version, the same for all devices: {bytes_text(most)} more down a"
            " device to say which. The rest waits on devices: the target takes more versions (docs/codecs.md)",
        )


def _helped_facts(plan: Plan, helper: str, *, devices: int, model_bytes: float) -> Iterator[tuple[str, str]]:
    least, is_private = plan.opened_least, plan.privacy is not None
    yield (
        "trust",
        f"{plan.trust}: {helper} opens the sums of {plural(devices, 'device')}, of at least {least} and each once. It"
        " trains nothing and does not lead; while it is away the job waits",
    )
    codec, values, words = _words_of(plan, model_bytes)
    mask_ms, rounding_ms = _word_ms(plan, codec)
    # Words that go to aggregators are masked twice, and the leader takes off the second mask of each.
    is_covered = plan.topology != "star"
    device_ms = values * _HASH_MS + words * (rounding_ms + (1 + is_covered) * mask_ms)
    leader_ms = values * _HASH_MS + words * mask_ms * devices * is_covered
    yield (
        "costs",
        f"about {device_ms:.0f} ms of a core more a version on a device, whatever their number,"
        f" {leader_ms:.0f} ms at the leader and {words * mask_ms * devices:.0f} ms at {helper};"
        f" {bytes_text(HELPER_ENVELOPE_BYTES)} more up a device, and one answer of"
        f" {bytes_text(words * codec.word_bits / 8)} from {helper}",
    )
    yield from _places_facts(codec, round(values), words)
    noise = ", never one without noise" if is_private else ""
    yield (
        "learns",
        f"the leader sees sums of at least {least} devices{noise}, and {helper} sees masks and no update, as long as"
        " the two do not tell each other what they have: together they see every update"
        + ("" if is_private else _CRAFTED),
    )
    if is_covered:
        yield (
            "meet",
            f"aggregators add up words with two masks and learn nothing of any update, also together with {helper}; one"
            " that is lost before its sum came costs a round, later nothing",
        )
    yield "stops not", f"a device or {helper} that lies: nobody can see who spoilt a sum"
