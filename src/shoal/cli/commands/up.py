"""`shoal up`: run this machine as the cluster's manager."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.help import RARE
from shoal.cli.options import DEFAULT_HOME, Home, LogFormat, check_home, size_bytes

if TYPE_CHECKING:
    from shoal.runtime.manager_main import ManagerReady


#: What a printed line is good for, unless the operator says otherwise.
LINE_DEVICES = 20
#: Devices that came more often would cost more than if they stayed; a device that is away for longer is not heard of.
CHECK_IN_LEAST_S = 60.0
CHECK_IN_MOST_S = 7 * 86400.0
LINE_HOURS = 24.0


def up(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on; 0.0.0.0 is every one, IPv4 and IPv6.")
    ] = "0.0.0.0",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65534, help="Devices work over this port and join over the next one; 0 lets the system choose."
        ),
    ] = 7070,
    advertise: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT][,...]",
            help="The address or name that devices dial: a DNS name outlives a change of address. They join over the"
            " next port. After a comma, those of the cluster's other managers, which devices dial if this one is gone.",
            show_default="this machine's address",
        ),
    ] = "",
    direct: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Where devices dial this manager and no other, if --advertise is a proxy before several: a device is"
            " sent to the manager that has its job. Without a port, the one that is listened on.",
            show_default="as --advertise",
            rich_help_panel=RARE,
        ),
    ] = "",
    token: Annotated[
        bool | None,
        typer.Option(
            "--token/--no-token",
            help="Print a new line to join with, or none.",
            show_default="only while no device has joined",
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Print a new line, for this many devices.", show_default=str(LINE_DEVICES)),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.01, help="Print a new line, which can be used for this many hours.", show_default=f"{LINE_HOURS:g}"
        ),
    ] = None,
    name: Annotated[str, typer.Option(metavar="CLUSTER", help="What to call a new cluster.")] = "shoal",
    approve: Annotated[
        bool, typer.Option("--approve", help="A device that joins waits until you say `shoal nodes approve`.")
    ] = False,
    certificate_days: Annotated[
        float,
        typer.Option(
            min=1, help="How long a device's certificate is valid; devices renew theirs in time.", rich_help_panel=RARE
        ),
    ] = 30.0,
    announce: Annotated[
        bool, typer.Option("--announce", help="Let `shoal join --find` see this cluster on the local network.")
    ] = False,
    lead: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Where leaders run: `here` (this machine), `devices`, or `auto` (devices lead sealed jobs without"
            " signed members, this machine the others).",
            rich_help_panel=RARE,
        ),
    ] = "auto",
    console: Annotated[
        bool, typer.Option("--console", help="Run `shoal console` beside it, for as long as this runs.")
    ] = False,
    browser: Annotated[
        str,
        typer.Option(
            metavar="ORIGIN",
            help="Let tabs of browsers train: https://NAME:PORT with a certificate for that name, or"
            " http://127.0.0.1:PORT for this machine's own. Needs `shoal browser runtime` once.",
            show_default="no tabs",
            rich_help_panel=RARE,
        ),
    ] = "",
    browser_certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The certificate of --browser, PEM.", show_default=False, rich_help_panel=RARE
        ),
    ] = None,
    browser_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The key of --browser-certificate.", show_default=False, rich_help_panel=RARE
        ),
    ] = None,
    disk_quota: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="The most that the cluster's files may take, such as 20GB: beyond it the files of the jobs that ended"
            " first go.",
            show_default="all of the disk",
            rich_help_panel=RARE,
        ),
    ] = "",
    keep_jobs: Annotated[
        str,
        typer.Option(
            metavar="TIME|COUNT",
            help="Remove ended jobs after this time, such as 90d, or all but this many, with their checkpoints and"
            " published versions.",
            show_default="all are kept",
            rich_help_panel=RARE,
        ),
    ] = "",
    check_in: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Devices without work hang up and come again after this time, such as 6h: for fleets of many"
            " thousands. A job waits for them that long.",
            show_default="devices stay connected",
            rich_help_panel=RARE,
        ),
    ] = "",
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="SHOAL_STORE",
            help="Keep members, jobs and history in PostgreSQL: postgresql://USER@HOST/DATABASE. A password belongs in"
            " SHOAL_STORE or ~/.pgpass, not here.",
            show_default="a file in HOME",
            rich_help_panel=RARE,
        ),
    ] = "",
    blobs: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Keep models, checkpoints and data in an S3: s3://BUCKET/PREFIX, with AWS_ACCESS_KEY_ID and its kin.",
            show_default="a folder in HOME",
            rich_help_panel=RARE,
        ),
    ] = "",
    downloads: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Where devices download data and models that are in --blobs: through this `manager`, from the `bucket`"
            " by signed URLs, or from a CDN in front of it, https://HOST/PREFIX.",
            rich_help_panel=RARE,
        ),
    ] = "manager",
    home: Home = DEFAULT_HOME,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings only, not every decision.")] = False,
    log_format: LogFormat = "",
    json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON when the cluster is up.", rich_help_panel=RARE)
    ] = False,
) -> None:
    """Run the manager on this always-on machine, and print the line to paste on each device.

    Example:  `shoal up`  or, where devices know this machine by a name,  `shoal up --advertise attic.lan`

    Started again, it prints no line if a device has joined: make one with `shoal token create`.
    """
    import asyncio

    from shoal.cli.commands.console import Beside
    from shoal.cli.render.format import parse_span
    from shoal.roles.manager.retention import KeepJobs
    from shoal.runtime import log_lines
    from shoal.runtime.manager_main import LEAD, run_home
    from shoal.runtime.tab_door import TabDoorOptions

    check_home(home)
    if lead not in LEAD:
        raise typer.BadParameter("choose auto, here or devices", param_hint="--lead")
    quota_bytes = size_bytes(disk_quota, option="--disk-quota") if disk_quota else 0
    check_in_s = parse_span(check_in) if check_in else 0.0
    if check_in and not CHECK_IN_LEAST_S <= check_in_s <= CHECK_IN_MOST_S:
        raise typer.BadParameter("choose a time from 1m to 168h", param_hint="--check-in")
    tabs = (
        TabDoorOptions(origin=browser, certificate=browser_certificate, key=browser_key)
        if browser or browser_certificate or browser_key
        else None
    )
    log_lines.set_up(quiet=quiet, given=log_format)
    beside = Beside(home) if console else None

    if token is None and (devices is not None or hours is not None):
        # A user who says how many may join, or for how long, asks for a line.
        token = True
    uses, valid_hours = devices or LINE_DEVICES, hours or LINE_HOURS

    def on_ready(ready: ManagerReady) -> None:
        _print_json(ready) if json else _announce(ready, home=home, devices=uses, hours=valid_hours)
        if beside is not None:
            beside.start(keeps_stdout_clean=json)

    serving = run_home(
        home,
        host=host,
        port=port,
        advertise=advertise,
        token=token,
        devices=uses,
        token_hours=valid_hours,
        name=name,
        approve=approve,
        announce=announce,
        certificate_days=certificate_days,
        prefers_devices=LEAD[lead],
        disk_quota_bytes=quota_bytes,
        keep_jobs=KeepJobs.parse(keep_jobs) if keep_jobs else None,
        check_in_s=check_in_s,
        store=store,
        blobs=blobs,
        downloads=downloads,
        direct=direct,
        tabs=tabs,
        on_ready=on_ready,
    )
    try:
        asyncio.run(serving)
    finally:
        if beside is not None:
            beside.end()


def _print_json(ready: ManagerReady) -> None:
    from shoal.cli import screen
    from shoal.cli.render.plain_json import to_plain

    screen.print_json(to_plain(ready))


def _announce(ready: ManagerReady, *, home: Path, devices: int, hours: float) -> None:
    from rich.text import Text

    from shoal.cli import screen
    from shoal.cli.render.format import plural
    from shoal.identity.join_code import split_endpoint

    terminal = screen.out()
    terminal.print(Text.assemble("Cluster ", (ready.cluster, "bold"), f" is up at {ready.endpoint}."))
    if ready.warning:
        terminal.print(Text.assemble(("Warning: ", "bold yellow"), ready.warning), soft_wrap=True)
    if ready.join_line:
        terminal.print(f"\nRun this on each device ({plural(devices, 'device')}, for {hours:g} hours):\n")
        # Never wrapped: a line that is copied in two pieces does not work.
        terminal.print(Text("  ").append(f"shoal join {ready.join_line}", style="bold green"), soft_wrap=True)
    else:
        terminal.print("\nNo new join line was made: devices that joined come back by themselves. To add others:\n")
        terminal.print(Text("  ").append(_token_command(home), style="bold green"), soft_wrap=True)
    terminal.print()
    facts = [
        ("ports", f"{ready.port} for work, {ready.enrol_port} for joining: open both to your devices"),
        ("state", f"{home}: back it up, the cluster's key is there"),
        ("next", "shoal train examples/mnist   (in another terminal; Ctrl-C here stops the manager)"),
    ]
    if (told := split_endpoint(ready.endpoint)[1]) != ready.port:
        forward = f"devices dial {told} and {told + 1}: forward them to {ready.port} and {ready.enrol_port} here"
        facts.insert(0, ("forward", forward))
    if ready.browser_origin:
        facts.append(("browsers", f"{ready.browser_origin}: shoal token create --browser"))
    for label, text in facts:
        terminal.print(Text.assemble((f"  {label:<9}", "dim"), text), soft_wrap=True)
    if ready.resumed_jobs:
        terminal.print(Text.assemble(("  resumed  ", "dim"), ", ".join(ready.resumed_jobs)), soft_wrap=True)
    terminal.print()


def _token_command(home: Path) -> str:
    import shlex

    elsewhere = "" if home == DEFAULT_HOME.expanduser() else f" --home {shlex.quote(str(home))}"
    return f"shoal token create --uses {LINE_DEVICES}{elsewhere}"
