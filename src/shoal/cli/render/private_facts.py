"""What a private plan promises, costs and does not hide, in sentences. Pure; asks nobody."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shoal.cli.render.format import bytes_text, plural
from shoal.learning.privacy import Privacy, SharedPrivacy

#: Milliseconds of one core for a value: to draw its noise and carry it on at the leader, and to cut it on a device.
_NOISE_MS, _CUT_MS = 2.6e-5, 2.0e-6

#: Versions of fewer devices: the noise that hides one of them hides what all of them say.
_DEVICES_FEW = 40

#: Vectors of a model's size that a leader keeps for its noise.
_BUFFERS = 4

#: A model that noise moved this much as far as its updates could have learns little.
_NOISE_MUCH = 0.5


#: Topology -> what its aggregators see before noise is added.
_SEEN = {
    "tree": "each aggregator sees every update of its group",
    "shard": "each aggregator sees its part of every update",
    "auto": "in a tree each aggregator sees every update of its group, in a shard its part of every update",
}


def private_facts(
    privacy: Privacy, *, devices: int, values: float, topology: str = "star", pace: str = "sync"
) -> Iterator[tuple[str, str]]:
    """Labels and texts for a job of so many devices and values."""
    yield (
        "promise",
        f"epsilon {privacy.epsilon:g}, delta {privacy.delta:g} at the plan's end, for all that one device ever sends:"
        f" {plural(privacy.participations, 'update')} at most, {_spaced(privacy)}, in"
        f" {plural(privacy.versions, 'version')} of {plural(privacy.devices, 'device')}",
    )
    first = privacy.epsilon_of(privacy.spent([1]))
    yield "spends", f"epsilon {first:.2g} with the first update of a device; each device keeps its own account"
    if values:
        share = noise_to_signal(privacy, values)
        yield (
            "noise",
            f"a deviation of {privacy.mean_deviation:.2g} in each value of a version's mean, whose updates"
            f" are {privacy.clip:g} long at most; by the end it has moved the model {100 * share:.0f} % as far as"
            " updates that all agree could",
        )
    if isinstance(privacy, SharedPrivacy):
        more = math.sqrt(privacy.devices / privacy.certain)
        yield (
            "shares",
            f"each device adds noise for the {plural(privacy.certain, 'device')} whose noise is certain in the smallest"
            f" sum that is opened: a version of all {privacy.devices} has {more:.2f} times the deviation it needs",
        )
    else:
        yield from _leader_facts(values, topology=topology, pace=pace)
    if privacy.devices < _DEVICES_FEW:
        yield (
            "warning",
            f"noise that hides one of {plural(privacy.devices, 'device')} hides most of what they say together: twenty"
            f" devices and privacy do not go together. Have {_DEVICES_FEW} or more in a version (cohort, buffer)",
        )
    elif values and noise_to_signal(privacy, values) > _NOISE_MUCH:
        yield "warning", "noise moves the model as far as learning: have more devices a version, or fewer versions"
    if 0 < devices < privacy.devices:
        yield "warning", f"{plural(devices, 'device')} are here, and a sum is divided by {privacy.devices} all the same"


def _spaced(privacy: Privacy) -> str:
    if isinstance(privacy, SharedPrivacy):
        return "those of sums that come to nothing among them"
    return f"{plural(privacy.apart, 'version')} apart or more"


def _leader_facts(values: float, *, topology: str, pace: str) -> Iterator[tuple[str, str]]:
    """Where the leader adds the noise."""
    if values:
        leader_ms, device_ms = values * _NOISE_MS, values * _CUT_MS
        kept = bytes_text(_BUFFERS * values * 4)
        yield (
            "costs",
            f"about {leader_ms:.0f} ms of a core more a version at the leader and {kept} of its memory,"
            f" {device_ms:.1g} ms and one small file on a device; no bytes more"
            + ("" if topology in ("star", "tree") else ", but the leader of a shard sends each version once, in parts"),
        )
    promise = "The promise holds against readers of the models: other devices, and users of published versions"
    if topology == "star":
        yield (
            "learns",
            "the leader sees every update before noise is added, and who came when: let a machine of yours lead."
            f" {promise}",
        )
        return
    yield (
        "learns",
        f"{_SEEN[topology]} before noise is added, and the leader sums of them, and who came when. Any device may be an"
        f" aggregator: where that is too much, name topology = 'star' or trust = 'sealed + private(...)'. {promise}",
    )
    yield (
        "bears not",
        "an aggregator that lies about what it sums up: the leader cuts a sum to what its devices could make of it",
    )
    if pace == "buffered":
        yield (
            "meet",
            "groups of a tree come whole, so that a version may be of more devices than buffer, and is divided by"
            " buffer all the same: set buffer to several times the size of a group",
        )


def noise_to_signal(privacy: Privacy, values: float) -> float:
    """How far noise has moved a model by the end of a plan, by how far updates could that all point one way."""
    if isinstance(privacy, SharedPrivacy):
        # Fresh noise for each version: it adds up as a root.
        return privacy.mean_deviation / privacy.clip * math.sqrt(values / privacy.versions)
    from shoal.learning.blt import row_for, toeplitz_ratio

    in_sums = row_for(privacy.versions).error / toeplitz_ratio(1, 1, privacy.versions)
    return in_sums * privacy.multiplier * math.sqrt(values) / (privacy.devices * privacy.versions)


def spent_text(epsilon: float, epsilon_worst: float, participations: int) -> str:
    """For a status."""
    return f"{epsilon_worst:.2f} spent by the device that came most ({participations} times), {epsilon:.2f} by the job"
