"""`shoal up`: run this machine as the cluster's manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.runtime.serve import Ready


def up(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "0.0.0.0",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65534, help="Devices work over this port and join over the next one; 0 lets the system choose."
        ),
    ] = 7070,
    devices: Annotated[int, typer.Option(min=1, help="How many devices may join with the printed line.")] = 20,
    hours: Annotated[float, typer.Option(min=0.01, help="How long the printed line can be used.")] = 24.0,
    name: Annotated[str, typer.Option(metavar="CLUSTER", help="What to call a new cluster.")] = "shoal",
    approve: Annotated[
        bool, typer.Option("--approve", help="Whoever joins waits until you say `shoal nodes approve`.")
    ] = False,
    certificate_days: Annotated[
        float, typer.Option(min=1, help="How long a device's certificate is valid; devices renew theirs in time.")
    ] = 30.0,
    announce: Annotated[
        bool, typer.Option("--announce", help="Let `shoal join --find` see this cluster on the local network.")
    ] = False,
    lead: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Who leads jobs when all are placed alike: `here`, on this machine, or `devices`, to spare it.",
        ),
    ] = "here",
    home: Home = DEFAULT_HOME,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings only, not every decision.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON when the cluster is up.")] = False,
) -> None:
    """Run the manager on this always-on machine, and print the line to paste on each device.

    Example:  `shoal up --port 7070`
    """
    import asyncio

    from shoal.cli.logs import log_to_stderr
    from shoal.runtime.serve import run_home

    if lead not in ("here", "devices"):
        raise typer.BadParameter("choose here or devices", param_hint="--lead")
    log_to_stderr(quiet=quiet)

    def on_ready(ready: Ready) -> None:
        _print_json(ready) if json else _announce(ready, home=home, devices=devices, hours=hours)

    asyncio.run(
        run_home(
            home,
            host=host,
            port=port,
            devices=devices,
            token_hours=hours,
            name=name,
            approve=approve,
            announce=announce,
            certificate_days=certificate_days,
            prefers_devices=lead == "devices",
            on_ready=on_ready,
        )
    )


def _print_json(ready: Ready) -> None:
    from shoal.cli import console
    from shoal.cli.plain_json import to_plain

    console.print_json(to_plain(ready))


def _announce(ready: Ready, *, home: Path, devices: int, hours: float) -> None:
    from rich.text import Text

    from shoal.cli import console
    from shoal.cli.words import plural

    screen = console.out()
    line = Text("  ").append(f"shoal join {ready.join_line}", style="bold green")
    screen.print(Text.assemble("Cluster ", (ready.cluster, "bold"), f" is up at {ready.endpoint}."))
    screen.print(f"\nRun this on each device ({plural(devices, 'device')}, for {hours:g} hours):\n")
    # Never wrapped: a line that is copied in two pieces does not work.
    screen.print(line, soft_wrap=True)
    screen.print()
    facts = (
        ("ports", f"{ready.port} for work, {ready.enrol_port} for joining: open both to your devices"),
        ("state", f"{home}: back it up, the cluster's key is there"),
        ("next", "shoal train examples/mnist   (in another terminal; Ctrl-C here stops the manager)"),
    )
    for label, text in facts:
        screen.print(Text.assemble((f"  {label:<7}", "dim"), text), soft_wrap=True)
    if ready.resumed_jobs:
        screen.print(Text.assemble(("  resumed", "dim"), f"  {', '.join(ready.resumed_jobs)}"), soft_wrap=True)
    screen.print()
