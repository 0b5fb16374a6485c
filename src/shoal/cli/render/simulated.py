"""What a simulation came to, as a person reads it: one column a plan, the devices, their time. Pure drawing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shoal.cli.render.format import bytes_text, clean, count_text, number_text, plural, rate_text, share_text, span_text
from shoal.sim.outcome import DeviceActivity, DeviceTimeline, Outcome
from shoal.sim.study import CHECK_IN_S, COHORT_FROM

if TYPE_CHECKING:
    from shoal.cli.simulation import Question, SimulationAnswer

#: Devices shown one by one.
_LANES_SHOWN = 12
_LANE_WIDTH_MAX = 72

#: Reasons of trouble, and things that devices waited for, that are shown.
_REASONS_SHOWN = 3
_WAITS_SHOWN = 2
_WAIT_WORDS = {
    "lease": "a lease",
    "model": "the model on its way",
    "update": "their update on its way",
    "start": "code, data and the trainer to start",
}

#: How a moment of a device looks: a letter for eyes that see no colour, and a style.
_LOOKS: dict[DeviceActivity, tuple[str, str]] = {
    DeviceActivity.TRAINING: ("█", "green"),
    DeviceActivity.EVALUATING: ("▓", "cyan"),
    DeviceActivity.RECEIVING: ("▄", "blue"),
    DeviceActivity.SENDING: ("▀", "blue"),
    DeviceActivity.PREPARING: ("░", "yellow"),
    DeviceActivity.WAITING: ("·", "dim"),
    DeviceActivity.AWAY: (" ", ""),
}


def summary(
    question: Question, answers: Sequence[SimulationAnswer], *, seconds: float, width: int
) -> Iterator[RenderableType]:
    events = sum(answer.outcome.events for answer in answers)
    what = f"{plural(question.devices, 'device')} of {clean(str(question.profile))}, seed {question.seed}"
    took = f"{count_text(events)} events in {span_text(seconds)}"
    yield Text.assemble(("\nSimulated ", "bold"), (clean(question.task), "bold"), f": {what}", (f"  ({took})", "dim"))
    rows = max(answer.outcome.rows for answer in answers)
    if rows:
        yield Text(f"  {_rows_text(rows)}", style="dim")
    yield _facts(answers)
    for answer in answers:
        yield from _devices(answer.title if len(answers) > 1 else "", answer.outcome, width)


def _rows_text(rows: int) -> str:
    told = f"{count_text(rows)} of them were rows of a cohort at the end, as from {count_text(COHORT_FROM)} devices on:"
    left_out = f"without work they check in every {span_text(CHECK_IN_S)}; idle time and waits are of the others"
    return f"{told} {left_out} (docs/simulator.md)"


def _facts(answers: Sequence[SimulationAnswer]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=len(answers) > 1, header_style="bold")
    table.add_column("", style="dim")
    for answer in answers:
        table.add_column(clean(answer.title))
    rows = {"result": _result, "time": _time, "goal": _goal, "rounds": _rounds, "devices": _took_part}
    costs = {"traffic": _traffic, "idle": _idle, "waited": _waited, "energy": _energy, "trouble": _trouble}
    for label, tell in {**rows, **costs}.items():
        cells = [tell(answer.outcome) for answer in answers]
        if any(cells):
            table.add_row(f"  {label}", *cells)
        if label == "result" and any(answer.divided for answer in answers):
            table.add_row("  examples", *map(_examples, answers))
        if label == "rounds" and any(answer.topology for answer in answers):
            table.add_row("  topology", *(answer.topology for answer in answers))
        if label == "energy" and any(answer.cost for answer in answers):
            table.add_row("  cost", *map(_cost, answers))
    for reasons in itertools.zip_longest(*(_reasons(answer.outcome) for answer in answers), fillvalue=""):
        table.add_row("", *reasons)
    return table


def _result(outcome: Outcome) -> str:
    told = f"{outcome.state}: {clean(outcome.reason)}"
    if not outcome.evaluations or outcome.is_system_only:
        return told
    return f"{figures_text(outcome)}; {told}"


def _examples(answer: SimulationAnswer) -> str:
    if answer.divided is None:
        return ""
    told = answer.divided.to_plain()
    counts = f"{told['least']} to {told['most']} on a device, median {told['median']:g}"
    return f"{clean(told['partition'])}: {counts} ({told['sha256'][:12]})"


def figures_text(outcome: Outcome) -> str:
    """What the last evaluation found: ``97.64 % right``, or every metric where there is no accuracy."""
    if outcome.accuracy is not None:
        return f"{share_text(outcome.accuracy)} right"
    return ", ".join(f"{clean(name, 30)} {number_text(figure)}" for name, figure in outcome.metrics.items())


def _time(outcome: Outcome) -> str:
    return f"{span_text(outcome.seconds)}, {plural(outcome.epochs, 'epoch')}"


def _goal(outcome: Outcome) -> str:
    if outcome.goal is None:
        return ""
    reached_s = outcome.time_to(outcome.goal)
    when = "not reached" if reached_s is None else f"after {span_text(reached_s)}"
    return f"{share_text(outcome.goal)} {when}"


def _rounds(outcome: Outcome) -> str:
    return f"{plural(outcome.rounds, 'version')}, {rate_text(outcome.rounds / outcome.seconds)} a second"


def _took_part(outcome: Outcome) -> str:
    return f"{count_text(outcome.took_part)} of {count_text(len(outcome.devices) + outcome.rows)} took part"


def _traffic(outcome: Outcome) -> str:
    return f"{bytes_text(outcome.bytes_up)} up, {bytes_text(outcome.bytes_down)} down"


def _idle(outcome: Outcome) -> str:
    return f"{share_text(outcome.idle_share, 0)} of the devices' time"


def _energy(outcome: Outcome) -> str:
    return f"{outcome.energy_wh:.3g} Wh (estimated)" if outcome.energy_wh else ""


def _cost(answer: SimulationAnswer) -> str:
    parts = ", ".join(f"{number_text(value)} of {name}" for name, value in answer.cost.items())
    whole = f"{number_text(sum(answer.cost.values()))} {clean(answer.currency)}"
    return f"{whole.strip()}: {parts}" if answer.cost else ""


def _waited(outcome: Outcome) -> str:
    """Name the waits that most devices had longest, and the leader's usual reason."""
    here_s = sum(device.here_s for device in outcome.devices)
    told: list[str] = []
    for name, wait in itertools.islice(outcome.waited.items(), _WAITS_SHOWN):
        if not wait.devices:
            continue
        of = f" of {count_text(len(outcome.devices))}" if not told else ""
        devices = f"{count_text(wait.devices)}{of} longest for {_WAIT_WORDS[name]}"
        told.append(f"{devices} ({share_text(wait.seconds / here_s, 0)} of the devices' time)")
    said = next((each.reason for each in outcome.reasons if each.kind == "wait"), "")
    is_lease = next(iter(outcome.waited), "") == "lease"
    return "; ".join(told) + (f": {clean(said, 80)}" if said and is_lease and len(told) == 1 else "")


def _reasons(outcome: Outcome) -> list[str]:
    """The most frequent reasons of what went wrong."""
    troubles = (each for each in outcome.reasons if each.kind != "wait")
    shown = itertools.islice(troubles, _REASONS_SHOWN)
    return [f"{count_text(each.count)} × {each.kind}: {clean(each.reason, 90)}" for each in shown]


def _trouble(outcome: Outcome) -> str:
    counts = (
        (outcome.leases_expired, "lease expired", "leases expired"),
        (outcome.refused, "update refused", "updates refused"),
        (outcome.crashes, "crash", "crashes"),
        (sum(device.failures for device in outcome.devices), "failure of a trainer", "failures of trainers"),
    )
    return ", ".join(plural(count, one, many) for count, one, many in counts if count)


def _devices(title: str, outcome: Outcome, width: int) -> Iterator[RenderableType]:
    lanes = _evenly(outcome.lanes, _LANES_SHOWN)
    by_node = {device.node: device for device in outcome.devices}
    columns = max(20, min(_LANE_WIDTH_MAX, width - 58))
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    more = len(outcome.devices) - len(lanes)
    head = f"0 to {span_text(outcome.seconds)}" + (f"; {plural(more, 'more device')} not shown" if more > 0 else "")
    for name in ("  device", "kind", "batches", "busy", head):
        table.add_column(name, justify="right" if name in ("batches", "busy") else "left", no_wrap=True)
    for lane in lanes:
        device = by_node[lane.node]
        busy = share_text(device.busy_s / device.here_s, 0) if device.here_s else "–"
        strip = lane_text(lane, outcome.seconds, columns)
        table.add_row(f"  {lane.node}", clean(device.kind, 24), str(device.batches), busy, strip)
    if title:
        yield Text(f"\n  {clean(title)}", style="bold")
    yield table
    yield _legend()


def _evenly(lanes: Sequence[DeviceTimeline], most: int) -> list[DeviceTimeline]:
    if len(lanes) <= most:
        return list(lanes)
    return [lanes[number * (len(lanes) - 1) // (most - 1)] for number in range(most)]


def lane_text(lane: DeviceTimeline, end_s: float, columns: int) -> Text:
    """A device's time as a strip: in each column, what it did longest."""
    text = Text()
    column_s = end_s / columns if end_s > 0 else 1.0
    spans, at = lane.spans, 0
    for column in range(columns):
        begin_s, finish_s = column * column_s, (column + 1) * column_s
        while at < len(spans) and spans[at].to_s <= begin_s:
            at += 1
        longest: dict[DeviceActivity, float] = {}
        look = at
        while look < len(spans) and spans[look].from_s < finish_s:
            span = spans[look]
            shared_s = min(span.to_s, finish_s) - max(span.from_s, begin_s)
            longest[span.state] = longest.get(span.state, 0.0) + shared_s
            look += 1
        state = max(longest, key=lambda one: longest[one]) if longest else DeviceActivity.AWAY
        mark, style = _LOOKS[state]
        text.append(mark, style=style or None)
    return text


def _legend() -> Text:
    text = Text("  ")
    for state, (mark, style) in _LOOKS.items():
        if state is not DeviceActivity.AWAY:
            text.append(f"{mark} ", style=style)
            text.append(f"{state.value}   ", style="dim")
    return text
