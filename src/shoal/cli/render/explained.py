"""Why updates are summed where they are, for a person and as JSON. Pure drawing; asks nobody."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shoal.cli.render.format import bytes_text, clean, lease_text, plural, share_text
from shoal.cli.render.plain_json import to_plain
from shoal.cli.render.topologies import chosen_of, kind_of, off_by, predicted_s, topology_text
from shoal.cli.render.trusted import trust_facts
from shoal.cli.sketch import Sketch, refusal_of
from shoal.roles.leader.gathering.policy import ROUNDS_FIRST
from shoal.roles.leader.memory_needed import MemoryNeeded, memory_needed
from shoal.topology.choose import MARGIN, ROUNDS_OFF

if TYPE_CHECKING:
    from shoal.plan import Plan
    from shoal.topology.choose import Choice
    from shoal.wire.messages import JobView, Progress, WorkerView

_BYTES_A_NUMBER = 4

#: Topology, pace, seconds, detail, whether it was chosen.
Row = tuple[str, str, float, str, bool]


# A job ---------------------------------------------------------------------------------------------------


def job_lines(view: JobView) -> Iterator[RenderableType]:
    progress = view.progress
    name = f"{clean(view.job)} ({clean(view.name, 40)})"
    if progress is None or not progress.topology:
        yield Text.assemble((name, "bold"), f": {clean(view.state)}, nothing is known of its updates yet")
    else:
        yield Text.assemble((name, "bold"), f": {topology_text(progress, view.plan)}")
        if progress.alternatives:
            chosen = chosen_of(progress)
            yield Text()
            yield _table([(v.topology, v.pace, v.batch_s, v.detail, v == chosen) for v in progress.alternatives])
        yield Text()
        for label, text in _facts(view, progress):
            yield _fact(label, text)
    for text in advice(view):
        yield _fact("next", text)


def _facts(view: JobView, progress: Progress) -> Iterator[tuple[str, str]]:
    asked = f"topology {view.plan.topology}, pace {view.plan.pace}"
    yield "asked for", asked + (f", {plural(view.plan.aggregators, 'aggregator')}" if view.plan.aggregators else "")
    if reason := clean(progress.topology_reason):
        yield "why", reason
    yield "measured", _measured(progress)
    yield "workers", _crew(progress)
    if links := _links(view, progress):
        yield "links", links
    if view.model_size:
        yield "memory", memory_text(memory_needed(view.plan, values=view.model_size, devices=len(progress.workers)))
    yield from trust_facts(view.plan, devices=len(progress.workers), model_bytes=model_bytes(view))


def memory_text(needed: MemoryNeeded) -> str:
    """Return what a leader and a device of a job need, for people."""
    leader = f"the leader needs about {bytes_text(needed.leader_bytes)} ({needed.leader_models:g} models)"
    return f"{leader}, a device {bytes_text(needed.device_bytes)} and what a batch takes"


def _measured(progress: Progress) -> str:
    if progress.round_s <= 0:
        return "nothing yet: it takes a round in which everyone trained one lease and nobody came, went or failed"
    told = f"{lease_text(progress.round_s)} a batch, {lease_text(progress.sync_s)} of it not training"
    off = off_by(progress)
    if off is None:
        return told
    way = "as" if abs(off) < 0.005 else f"{share_text(abs(off), 0)} {'more' if off > 0 else 'less'} than"
    return f"{told}; {way} predicted ({lease_text(predicted_s(progress))})"


def _crew(progress: Progress) -> str:
    unknown = f"{plural(len(progress.workers), 'worker')}; whether one more would help is not known yet"
    return clean(progress.saturation_reason) or unknown


def _links(view: JobView, progress: Progress) -> str:
    """Return the links as leases measure them. Only in a star does a lease carry a complete model both ways."""
    ways = _ways(view, progress)
    if not ways:
        return ""
    typical_s = median(way_s for _, way_s, _ in ways)
    node, longest_s, _ = max(ways, key=lambda way: (way[1], way[0]))
    told = f"a model there and back takes {lease_text(typical_s)} in the median"
    if model_bytes(view):
        told += f", so a link carries at least {bytes_text(median(rate for _, _, rate in ways))}/s"
    return told + (f"; longest for {clean(node, 63)}: {lease_text(longest_s)}" if len(ways) > 1 else "")


def _ways(view: JobView, progress: Progress) -> list[tuple[str, float, float]]:
    """Each worker's time beyond its training, and the rate at which a model went there and back in that time."""
    if kind_of(progress.topology) != "star":
        return []
    both_ways_bytes = 2 * model_bytes(view)
    known = [(worker, _way_s(worker)) for worker in progress.workers]
    return [(worker.node, way_s, both_ways_bytes / way_s) for worker, way_s in known if way_s > 0]


def model_bytes(view: JobView) -> float:
    """Return the model's bytes if reported, else about what a worker of a star sends per lease, or 0."""
    if view.model_size or view.progress is None or kind_of(view.progress.topology) != "star":
        return _BYTES_A_NUMBER * view.model_size
    busy = [worker for worker in view.progress.workers if worker.batches > 0]
    sent = [worker.bytes_up * view.plan.lease_batches / worker.batches for worker in busy]
    return median(sent) if sent else 0.0


def _way_s(worker: WorkerView) -> float:
    return worker.lease_s - worker.train_s if worker.train_s > 0 else 0.0


def advice(view: JobView) -> Iterator[str]:
    """Return what a person can do next, or wait for."""
    progress = view.progress
    is_open = view.state.is_open
    if progress is None or not progress.workers:
        if is_open:
            yield f"nobody works for it now: `shoal status {view.job}` says why. Ask again once it trains"
    elif "auto" not in (view.plan.topology, view.plan.pace):
        measures = ": `--topology auto` measures and chooses" if refusal_of(view.plan, "auto") is None else ""
        yield f"the plan names topology and pace, so nothing was predicted{measures}"
        yield f"for a guess, with what a link carries: `{_sketch_command(view, progress)}`"
    elif not progress.alternatives:
        if is_open:
            yield (
                f"auto begins with a star and chooses after {ROUNDS_FIRST} rounds in which nobody came, went or failed:"
                " ask again then"
            )
    else:
        yield from _after_the_choice(view, progress)


def _after_the_choice(view: JobView, progress: Progress) -> Iterator[str]:
    chosen = chosen_of(progress)
    if chosen is not None and chosen.topology != kind_of(progress.topology):
        yield (
            f"a {clean(chosen.topology, 20)} was chosen and does not hold: it is being set up, or could not be."
            f" `shoal jobs show {view.job}` has the reasons"
        )
    off = off_by(progress)
    if off is not None and abs(off) > MARGIN:
        much = share_text(MARGIN, 0)
        yield f"that is off by more than {much}: after {ROUNDS_OFF} such rounds in a row the choice is made again"


def _sketch_command(view: JobView, progress: Progress) -> str:
    trained = [worker.train_s for worker in progress.workers if worker.train_s > 0]
    size_bytes = model_bytes(view)
    model_mb = f"{size_bytes / 1e6:.3g}" if size_bytes else "MB"
    train_s = f"{median(trained):.3g}" if trained else "S"
    fleet = f"--devices {len(progress.workers)} --mbps MBPS --model-mb {model_mb} --train-s {train_s}"
    trust = f" --trust {shlex.quote(view.plan.trust)}" if view.plan.trust != "identity" else ""
    return f"shoal plan explain {fleet}{trust}"


def job_plain(view: JobView) -> dict[str, Any]:
    progress = view.progress
    plan = {"topology": view.plan.topology, "pace": view.plan.pace, "aggregators": view.plan.aggregators}
    plain: dict[str, Any] = {"job": view.job, "name": view.name, "state": view.state, "asked_for": plan}
    if progress is not None:
        chosen = chosen_of(progress)
        plain |= {
            "topology": progress.topology,
            "pace": progress.pace,
            "reason": progress.topology_reason,
            "predicted_s": predicted_s(progress) or None,
            "measured_s": progress.round_s or None,
            "not_training_s": progress.sync_s if progress.round_s else None,
            "alternatives": [{**to_plain(each), "chosen": each == chosen} for each in progress.alternatives],
            "model_bytes": model_bytes(view) or None,
            "workers": len(progress.workers),
            "saturation": progress.saturation,
            "saturation_reason": progress.saturation_reason,
            "saturated_at": progress.saturated_at or None,
            "links": [
                {"node": node, "there_and_back_s": way_s, "at_least_bytes_per_s": rate or None}
                for node, way_s, rate in _ways(view, progress)
            ],
        }
        trust = dict(trust_facts(view.plan, devices=len(progress.workers), model_bytes=model_bytes(view)))
        plain |= {"trust": trust} if trust else {}
        if view.model_size:
            plain["memory"] = memory_needed(view.plan, values=view.model_size, devices=len(progress.workers))
    plain["next"] = list(advice(view))
    return {name: to_plain(value) for name, value in plain.items()}


# A fleet that is not there yet -----------------------------------------------------------------------------


def sketch_lines(sketch: Sketch, choice: Choice) -> Iterator[RenderableType]:
    air = ", all on the air of one access point" if sketch.shared_air else ""
    links = f"links of {bytes_text(sketch.link_bytes_per_s)}/s{air}"
    if sketch.leader_bytes_per_s != sketch.link_bytes_per_s or sketch.shared_air:
        links += f", the leader's {bytes_text(sketch.leader_bytes_per_s)}/s on a wire"
    if sketch.hubs:
        links += f"; {plural(sketch.hubs, 'hub')} with {bytes_text(sketch.hub_bytes_per_s)}/s"
    what = f"a model of {bytes_text(sketch.model_bytes)}, {lease_text(sketch.train_s)} of training"
    yield Text.assemble((plural(sketch.devices, "device", "devices alike"), "bold"), f": {links}; {what}")
    yield Text()
    yield _table([(p.topology, "sync", p.batch_s, p.detail, p is choice.best) for p in choice.alternatives])
    yield Text()
    yield _fact("chosen", choice.reason)
    for topology, why in sketch.left_out.items():
        yield _fact("not", f"{topology}: {why}")
    training = sketch.train_s / choice.best.batch_s
    moving = lease_text(choice.best.sync_s)
    yield _fact("time", f"{share_text(training, 0)} of a batch is training; models and updates move for {moving}")
    plan = sketch.plan_in(choice.best.topology)
    yield _fact("memory", memory_text(_sketch_memory(sketch, plan)))
    for label, text in trust_facts(plan, devices=sketch.devices, model_bytes=sketch.model_bytes):
        yield _fact(label, text)
    if plan.believes.rule is None:
        trust = f" --plan trust={shlex.quote(sketch.trust)}" if sketch.trust != "identity" else ""
        measures = ", or `--topology auto`, which measures first" if refusal_of(plan, "auto") is None else ""
        yield _fact("next", f"`shoal train TASK --topology {choice.best.topology}{trust}`{measures}")
    else:
        topology = f" --topology {plan.topology}" if plan.topology != "star" else ""
        yield _fact("next", f"`shoal train TASK{topology} --plan trust={shlex.quote(sketch.trust)}`")


def sketch_plain(sketch: Sketch, choice: Choice) -> dict[str, Any]:
    plan = sketch.plan_in(choice.best.topology)
    return {
        "fleet": to_plain(sketch),
        "chosen": choice.best.topology,
        "reason": choice.reason,
        "alternatives": [{**to_plain(each), "chosen": each is choice.best} for each in choice.alternatives],
        "left_out": sketch.left_out,
        "aggregators": len(choice.tree.groups) if choice.tree is not None else None,
        "hubs": choice.tree.hubs if choice.tree is not None else None,
        "trust": dict(trust_facts(plan, devices=sketch.devices, model_bytes=sketch.model_bytes)),
        "memory": to_plain(_sketch_memory(sketch, plan)),
    }


def _sketch_memory(sketch: Sketch, plan: Plan) -> MemoryNeeded:
    return memory_needed(plan, values=int(sketch.model_bytes / _BYTES_A_NUMBER), devices=sketch.devices)


# Both --------------------------------------------------------------------------------------------------------


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    for name in ("", "topology", "pace"):
        table.add_column(name, no_wrap=True)
    for name in ("a batch", "takes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("how", overflow="fold", style="dim")
    best_s = next((seconds for _, _, seconds, _, chosen in rows if chosen), 0.0)
    for topology, pace, seconds, detail, chosen in rows:
        times = f"{seconds / best_s:.1f}x as long" if best_s > 0 and not chosen else ""
        cells = (
            clean(topology, 20),
            clean(pace, 20),
            lease_text(seconds),
            "chosen" if chosen else times,
            clean(detail),
        )
        style = "bold green" if chosen else ""
        table.add_row("▸" if chosen else "", *(Text(cell) for cell in cells), style=style)
    return table


def _fact(label: str, text: str) -> Table:
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=9, no_wrap=True, style="dim")
    row.add_column(overflow="fold")
    row.add_row(label, Text(clean(text)))
    return row
