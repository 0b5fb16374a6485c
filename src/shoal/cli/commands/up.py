"""`shoal up`: run this machine as the cluster's manager."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.cli import up_options
from shoal.cli.options import DEFAULT_HOME, Home, LogFormat, check_home, size_bytes
from shoal.cli.up_options import LINE_DEVICES, LINE_HOURS

if TYPE_CHECKING:
    from shoal.runtime.manager_options import ManagerOptions
    from shoal.runtime.manager_start import ManagerReady


#: Devices that came more often would cost more than if they stayed; a device that is away for longer is not heard of.
CHECK_IN_LEAST_S = 60.0
CHECK_IN_MOST_S = 7 * 86400.0


def up(
    host: up_options.Host = "0.0.0.0",
    port: up_options.Port = 7070,
    advertise: up_options.Advertise = "",
    direct: up_options.Direct = "",
    token: up_options.Token = None,
    devices: up_options.Devices = None,
    hours: up_options.Hours = None,
    name: up_options.Name = "shoal",
    approve: up_options.Approve = False,
    certificate_days: up_options.CertificateDays = 30.0,
    announce: up_options.Announce = False,
    lead: up_options.Lead = "auto",
    console: up_options.Console = False,
    browser: up_options.Browser = "",
    browser_certificate: up_options.BrowserCertificate = None,
    browser_key: up_options.BrowserKey = None,
    browser_operator: up_options.BrowserOperator = "",
    browser_purpose: up_options.BrowserPurpose = "",
    browser_origin: up_options.BrowserOrigin = None,
    disk_quota: up_options.DiskQuota = "",
    keep_jobs: up_options.KeepJobs = "",
    check_in: up_options.CheckIn = "",
    contribute_mb: up_options.ContributeMb = 0,
    store: up_options.Store = "",
    blobs: up_options.Blobs = "",
    downloads: up_options.Downloads = "manager",
    home: Home = DEFAULT_HOME,
    quiet: up_options.Quiet = False,
    log_format: LogFormat = "",
    json: up_options.Json = False,
) -> None:
    """Run the manager on this always-on machine, and print the line to paste on each device.

    Example:  `shoal up`  or, where devices know this machine by a name,  `shoal up --advertise attic.lan`

    Started again, it prints no line if a device has joined: make one with `shoal token create`.
    """
    from shoal.runtime.manager_options import ManagerOptions

    check_home(home)
    options = ManagerOptions(
        home=home,
        host=host,
        port=port,
        advertise=advertise,
        direct=direct,
        name=name,
        token=_token(token, asks=devices is not None or hours is not None),
        devices=devices or LINE_DEVICES,
        token_hours=hours or LINE_HOURS,
        approve=approve,
        announce=announce,
        certificate_days=certificate_days,
        lead=_lead(lead),
        quiet=quiet,
        log_format=log_format,
        disk_quota_bytes=size_bytes(disk_quota, option="--disk-quota") if disk_quota else 0,
        keep_jobs=keep_jobs,
        check_in_s=_check_in_s(check_in),
        contribute_mb=contribute_mb,
        store=store,
        blobs=blobs,
        downloads=downloads,
        browser=browser,
        browser_certificate=browser_certificate,
        browser_key=browser_key,
        browser_operator=browser_operator,
        browser_purpose=browser_purpose,
        browser_origin=",".join(browser_origin or ()),
    )
    _serve(options, has_console=console, json=json)


def _serve(options: ManagerOptions, *, has_console: bool, json: bool) -> None:
    """Run the manager until it is told to stop, and the console beside it if that was asked for."""
    import asyncio

    from shoal.cli.commands.console import Beside
    from shoal.runtime import log_lines
    from shoal.runtime.manager_main import run_home

    log_lines.set_up(quiet=options.quiet, given=options.log_format)
    beside = Beside(options.home) if has_console else None

    def on_ready(ready: ManagerReady) -> None:
        _print_json(ready) if json else _announce(ready, options)
        if beside is not None:
            beside.start(keeps_stdout_clean=json)

    try:
        asyncio.run(run_home(options, on_ready=on_ready))
    finally:
        if beside is not None:
            beside.end()


def _lead(typed: str) -> str:
    from shoal.runtime.manager_options import LEAD

    if typed not in LEAD:
        raise typer.BadParameter("choose auto, here or devices", param_hint="--lead")
    return typed


def _check_in_s(typed: str) -> float:
    from shoal.cli.render.format import parse_span

    check_in_s = parse_span(typed) if typed else 0.0
    if typed and not CHECK_IN_LEAST_S <= check_in_s <= CHECK_IN_MOST_S:
        raise typer.BadParameter("choose a time from 1m to 168h", param_hint="--check-in")
    return check_in_s


def _token(wanted: bool | None, *, asks: bool) -> str:
    """Return when to make a join line. ``asks``: a user who says for how many it is, or how long, asks for a line."""
    if wanted is None:
        return "always" if asks else "first"
    return "always" if wanted else "never"


def _print_json(ready: ManagerReady) -> None:
    from shoal.cli import screen
    from shoal.cli.render.plain_json import to_plain

    screen.print_json(to_plain(ready))


def _announce(ready: ManagerReady, options: ManagerOptions) -> None:
    from rich.text import Text

    from shoal.cli import screen
    from shoal.cli.render.format import plural
    from shoal.identity.join_code import split_endpoint

    terminal = screen.out()
    terminal.print(Text.assemble("Cluster ", (ready.cluster, "bold"), f" is up at {ready.endpoint}."))
    if ready.warning:
        terminal.print(Text.assemble(("Warning: ", "bold yellow"), ready.warning), soft_wrap=True)
    if ready.join_line:
        terminal.print(
            f"\nRun this on each device ({plural(options.devices, 'device')}, for {options.token_hours:g} hours):\n"
        )
        # Never wrapped: a line that is copied in two pieces does not work.
        terminal.print(Text("  ").append(f"shoal join {ready.join_line}", style="bold green"), soft_wrap=True)
    else:
        terminal.print("\nNo new join line was made: devices that joined come back by themselves. To add others:\n")
        terminal.print(Text("  ").append(_token_command(options.home), style="bold green"), soft_wrap=True)
    terminal.print()
    facts = [
        ("ports", f"{ready.port} for work, {ready.enrol_port} for joining: open both to your devices"),
        ("state", f"{options.home}: back it up, the cluster's key is there"),
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
