"""What a robust or private plan costs, bears and does not hide, in sentences. Pure; asks nobody."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shoal.cli.render.format import bytes_text, plural
from shoal.cli.render.private_facts import private_facts
from shoal.cli.render.sealed import sealed_facts
from shoal.learning.robust import liars_borne
from shoal.plan import Plan
from shoal.roles.leader.gathering.comparing import products_bytes
from shoal.trust import DEVICES_LEAST, Rule

#: Milliseconds of one core for a value of each of so many devices, as ``benchmarks.trust`` measured them: to keep and
#: sum it up once more, and to multiply it with that of another device.
_KEEP_MS, _PRODUCT_MS = 1.2e-6, 3.4e-8
#: The same for an update that is clipped, and for the momentum of a device.
_CLIP_MS, _MOMENTUM_MS = 1.0e-6, 2.0e-6

#: Leases of fewer examples are noisy: a lie hides among them. With momentum on the devices fewer will do.
_EXAMPLES_FEW, _EXAMPLES_FEW_WITH_MOMENTUM = 64, 16

_VALUE_BYTES = 4


def trust_facts(plan: Plan, *, devices: int, model_bytes: float) -> Iterator[tuple[str, str]]:
    """Labels and texts for a job of so many devices; none where every member is believed."""
    trust = plan.believes
    if plan.privacy is not None:
        noisy = "nobody sees a sum without noise, and " if trust.sealed is not None else ""
        yield "trust", f"{plan.trust}: {noisy}the model tells little of any one person"
        yield from private_facts(
            plan.privacy,
            devices=devices,
            values=model_bytes / _VALUE_BYTES,
            topology=plan.topology,
            pace=plan.pace,
        )
    if trust.sealed is not None:
        yield from sealed_facts(plan, devices=devices, model_bytes=model_bytes)
    if plan.is_cut_unseen:
        yield from _cut_unseen(plan)
    if trust.rule is None or trust.sealed is not None:
        return
    nearest, values = trust.rule == "nearest", model_bytes / _VALUE_BYTES
    if not nearest:
        yield "trust", "robust(clip): an update counts as far as is usual, from the last version's mean"
    elif devices < DEVICES_LEAST:
        yield "trust", f"{plan.trust}: waits for {DEVICES_LEAST} devices, since of two nobody can tell which one lies"
    else:
        borne = liars_borne(devices, trust.share)
        yield "trust", f"{plan.trust}: of {plural(devices, 'device')} in a version {borne} may lie"
    if values and devices and plan.topology == "shard":
        yield "costs", _parted(trust.rule, plan, devices=devices, values=values)
    elif values and devices and plan.topology == "tree":
        yield "costs", _by_groups(plan, devices=devices, model_bytes=model_bytes)
    elif values and devices:
        work_ms = devices * values * (_KEEP_MS + devices * _PRODUCT_MS if nearest else _CLIP_MS)
        kept = f"; its leader keeps {bytes_text(devices * model_bytes)} of updates, on disk" if nearest else ""
        device = f", {_ms(values * _MOMENTUM_MS)} on a device" if plan.device_momentum else ""
        yield "costs", f"about {_ms(work_ms)} of a core more a version at the leader{device}; no bytes more{kept}"
    if plan.topology in ("tree", "shard"):
        what = "its part of every update" if plan.topology == "shard" else "every update of its group"
        yield "learns", f"each aggregator sees {what}, as it does without: robust hides nothing"
        yield "bears not", "an aggregator that lies about what it sums up: members that lie are outvoted"
    else:
        yield "learns", "the leader sees every update, as it does without: robust hides nothing"
    yield "stops not", _limits(nearest=nearest)
    examples = plan.batch_size * (1 if plan.data == "local" else plan.lease_batches)
    few = _EXAMPLES_FEW_WITH_MOMENTUM if plan.device_momentum else _EXAMPLES_FEW
    if examples < few:
        noisy = f"leases of {plural(examples, 'example')} give updates so noisy that a lie hides among them"
        yield "warning", f"{noisy}: raise batch_size or lease_batches until a lease has {few} or more"


def _cut_unseen(plan: Plan) -> Iterator[tuple[str, str]]:
    """What it stops and does not, where devices cut themselves and seal."""
    yield (
        "cuts",
        f"each device's agent cuts its update to a length of {plan.clip_update:g} before it seals, whatever the task's"
        " code or its data made of it; the leader opens a sum and drops it if its mean is longer. So no version moves"
        " further than one update may",
    )
    yield (
        "bears not",
        "an agent that was changed: nobody sees whether a device cut, and one that did not can decide where a version"
        " goes, as far as the length allows; or have every sum dropped, which stops the job. Nobody can see which one"
        " it was. Approve who joins, or take robust(nearest), whose leader sees updates",
    )


def _parted(rule: Rule, plan: Plan, *, devices: int, values: float) -> str:
    """What it costs where every device leads a part of the model, and updates lie in those."""
    times = devices * (_KEEP_MS + devices * _PRODUCT_MS if rule == "nearest" else _CLIP_MS)
    told = bytes_text(devices * products_bytes(rule, devices))
    device = f", {_ms(values * _MOMENTUM_MS)} for its momentum" if plan.device_momentum else ""
    return (
        f"about {_ms(times * values / devices)} of a core more a version on each of {plural(devices, 'aggregator')}"
        f"{device}; one more question and answer before each sum, {told} a version to the leader from all of them"
    )


def _by_groups(plan: Plan, *, devices: int, model_bytes: float) -> str:
    """What clipping costs in a tree, whose aggregators need the last mean and say how far each update is from it."""
    groups = plan.aggregators or max(1, round(math.sqrt(devices)))
    work_ms = devices / groups * model_bytes / _VALUE_BYTES * _CLIP_MS
    device = f", {_ms(model_bytes / _VALUE_BYTES * _MOMENTUM_MS)} on a device" if plan.device_momentum else ""
    told = bytes_text(groups * model_bytes)
    return (
        f"about {_ms(work_ms)} of a core more a version on each of {plural(groups, 'aggregator')}{device}; one more"
        f" question and answer for each update, up to {told} more a version from the leader, for the last mean"
    )


def _limits(*, nearest: bool) -> str:
    if nearest:
        return (
            "a backdoor in updates of the usual length, lies within what honest devices differ by where each has few"
            " labels, nor one person with a majority of devices: robust is for broken devices and crude lies"
        )
    return (
        "a lie that is no longer than an honest update, nor a backdoor. robust(nearest) stops some such lies where"
        " devices have similar data, and no backdoor of the usual length"
    )


def _ms(number: float) -> str:
    return f"{number:.0f} ms" if number >= 10 else f"{number:.1g} ms"
