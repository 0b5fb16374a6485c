"""`shoal plan`: what a fleet needs before there is one, and where the updates of a job meet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.commands.explain import explain
from shoal.cli.options import Json
from shoal.errors import Misuse

if TYPE_CHECKING:
    from rich.console import Console

    from shoal.topology.capacity import Figure, FleetLoad, MeasuredCosts, Needs

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)
app.command()(explain)

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

#: What the table calls each figure. Those that are not here are told in the lines around it, or only in JSON.
_LABELS = {
    "update_core_ms": "an update, of a core",
    "heartbeat_core_us": "a heartbeat, of a core",
    "connection_core_ms": "a connection, of a core",
    "device_bytes": "a device, of memory",
    "updates_per_s": "updates",
    "leaders": "leaders",
    "leader_cores": "cores that lead",
    "fold_cores": "of them, to merge alone",
    "levels": "levels of leaders",
    "managers": "managers",
    "heartbeats_per_s": "heartbeats",
    "links": "links",
    "up_bytes_per_s": "from devices",
    "down_bytes_per_s": "to devices",
    "connections": "connections",
    "memory_bytes": "memory",
    "back_s": "back after a restart",
    "history_bytes_per_day": "history a day",
    "machines": "machines",
    "cores_price": "machines, a month",
    "down_price": "sending, a month",
}


@app.callback()
def plan() -> None:
    """Reckon what a fleet needs; explain where the updates of a job meet, and why."""


@app.command()
def capacity(
    devices: Annotated[float, typer.Option(metavar="N", help="How many devices, such as 1000 or 1e6.")],
    model_mb: Annotated[
        float, typer.Option(metavar="MB", help="The size of the model, in MB of a million bytes.")
    ] = 3.0,
    every: Annotated[str, typer.Option(metavar="TIME", help="How often each sends an update: 30s, 10m, 1h.")] = "10m",
    update_mb: Annotated[
        float | None,
        typer.Option(metavar="MB", help="The size of an update, if it is not that of the model.", show_default=False),
    ] = None,
    heartbeat: Annotated[str, typer.Option(metavar="TIME", help="How often each says that it is there.")] = "1s",
    link_gbps: Annotated[float, typer.Option(metavar="GBPS", help="What the link of one machine carries.")] = 10.0,
    cores: Annotated[int, typer.Option(metavar="N", min=1, help="Cores of one machine.")] = 8,
    core_hour: Annotated[float, typer.Option(metavar="PRICE", help="A core for an hour; assumed.")] = 0.04,
    gb_down: Annotated[float, typer.Option(metavar="PRICE", help="A GB sent to devices; assumed.")] = 0.05,
    json: Json = False,
) -> None:
    """What so many devices need: leaders, links, memory, money; and what gives way first.

    Example:  `shoal plan capacity --devices 1e6 --model-mb 3 --every 10m`
    """
    from shoal.cli import screen
    from shoal.cli.render.plain_json import to_plain
    from shoal.topology.capacity import FleetLoad, Site, needs

    fleet = FleetLoad(
        devices=whole(devices),
        model_bytes=model_mb * 1e6,
        every_s=seconds(every),
        update_bytes=None if update_mb is None else update_mb * 1e6,
        heartbeat_s=seconds(heartbeat),
    )
    site = Site(
        link_bytes_per_s=link_gbps * 1e9 / 8,
        cores_per_machine=cores,
        price_core_hour=core_hour,
        price_gb_down=gb_down,
    )
    measured = measured_figures()
    answer = needs(fleet, measured, site)
    if json:
        parts = {"fleet": fleet, "site": site, "measured": measured, "figures": answer.figures, "limits": answer.limits}
        screen.print_json(to_plain(parts))
    else:
        _tell(screen.out(), fleet, measured, answer)


def whole(number: float) -> int:
    """1e6 -> 1,000,000: large numbers are typed so."""
    if not math.isfinite(number) or number != int(number):
        raise Misuse(f"devices are counted in whole numbers, not {number:g}")
    return int(number)


def seconds(text: str) -> float:
    """``10m`` -> 600."""
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text.strip()[len(number) :].strip() or "s"
    try:
        return float(number) * _UNITS_S[unit]
    except (ValueError, KeyError):
        raise Misuse(f"a time is a number and one of {', '.join(_UNITS_S)}, such as 10m; {text!r} is not") from None


def measured_figures() -> MeasuredCosts:
    """What came with this release."""
    from importlib import resources
    from json import loads

    from shoal.topology.capacity import MeasuredCosts

    text = resources.files("shoal.topology").joinpath("measured.json").read_text(encoding="utf-8")
    return MeasuredCosts.from_plain(loads(text))


def _tell(terminal: Console, fleet: FleetLoad, measured: MeasuredCosts, answer: Needs) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from shoal.cli.render.format import bytes_text, span_text

    size = bytes_text(fleet.model_bytes)
    if fleet.update_bytes is not None:
        size += f", updates of {bytes_text(fleet.update_bytes)}"
    every = span_text(fleet.every_s)
    terminal.print(f"{fleet.devices:,} devices, a model of {size}, one update every {every} from each")
    table = Table(box=SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    table.add_column("what", no_wrap=True)
    table.add_column("needed", justify="right", no_wrap=True)
    table.add_column("rests on", no_wrap=True)
    table.add_column("how", overflow="fold", style="dim")
    for figure in answer.figures:
        if figure.name in _LABELS:
            table.add_row(_LABELS[figure.name], value_text(figure), figure.basis, figure.how)
    terminal.print(table)
    terminal.print()
    terminal.print("What gives way first, with one leader and one manager on one machine:")
    for limit in answer.limits:
        over = " <- too few" if limit.devices < fleet.devices else ""
        terminal.print(
            f"  {limit.part:<12} {limit.devices:>13,} devices  {limit.how} ({limit.basis}){over}", soft_wrap=True
        )
    terminal.print()
    tried = f"with {measured.devices_tried} devices connected, at a load of {measured.load:g}"
    terminal.print(f"Measured on {measured.date}, {tried}, on {measured.machine}.", style="dim", soft_wrap=True)
    terminal.print("Prices are assumed: give your own with --core-hour and --gb-down.", style="dim", soft_wrap=True)
    if answer["leaders"] > 1 or answer["managers"] > 1:
        today = "A job has one leader and a cluster one manager today: this says how many it would take."
        terminal.print(today, soft_wrap=True)


def value_text(figure: Figure) -> str:
    """As people write such a figure."""
    from shoal.cli.render.format import bytes_text, rate_text, span_text

    if figure.unit == "B":
        return bytes_text(figure.value)
    if figure.unit == "B/s":
        return f"{bytes_text(figure.value)}/s"
    if figure.unit == "/s":
        return f"{rate_text(figure.value)}/s"
    if figure.unit in ("ms", "µs"):
        return f"{figure.value:.3g} {figure.unit}"
    if figure.unit == "s":
        return span_text(figure.value)
    if figure.value == int(figure.value):
        return f"{int(figure.value):,}"
    return f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.2g}"
