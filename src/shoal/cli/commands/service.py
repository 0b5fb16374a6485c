"""`shoal service`: start a manager or an agent at boot, by systemd; look at it, and take it away again."""

from __future__ import annotations

import sys
import typing
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import Json
from shoal.cli.service_unit import LINE_FILE, STATE_ROOT, Part, ServiceSettings, unit_name, unit_text
from shoal.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)

_PassedOn = {"allow_extra_args": True, "ignore_unknown_options": True}

_Which = Annotated[Part, typer.Argument(metavar="manager|agent", show_default=False, help="What the service runs.")]

#: Apart from each other: a task must not run as the user that owns the cluster's keys.
USERS = {Part.MANAGER: "shoal", Part.AGENT: "shoal-trainer"}
HOMES = {Part.MANAGER: STATE_ROOT / "shoal", Part.AGENT: STATE_ROOT / "shoal-agent"}


@app.callback()
def service() -> None:
    """Start the manager or this device's agent at boot, restart it when it fails, and confine it.

    Example:  `shoal service install manager -- --advertise attic.lan`
    """


@app.command(context_settings=_PassedOn)
def install(
    context: typer.Context,
    part: _Which,
    user: Annotated[
        str,
        typer.Option(
            help="The user of a manager's service, or of an agent's trainers; made if there is none.",
            show_default="shoal, shoal-trainer",
        ),
    ] = "",
    home: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the service keeps its files.",
            show_default="/var/lib/shoal, /var/lib/shoal-agent",
        ),
    ] = None,
    rootless: Annotated[
        bool,
        typer.Option(
            "--rootless",
            help="Run all of the agent as --user: tasks can then read this device's keys and use its network.",
        ),
    ] = False,
    line_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with the line that the agent joins with, or `-`: kept in its home until it has joined.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the unit, and change nothing.")] = False,
) -> None:
    """Install a unit and start it, now and at every boot. Options after `--` go to `shoal up` or `shoal join`.

    Example:  `shoal service install agent --line-file line.txt -- --data /srv/readings`

    To look at the unit first:  `shoal service install manager --dry-run`
    """
    from shoal.cli import systemd

    settings = ServiceSettings(
        part=part,
        user=user or USERS[part],
        home=PurePosixPath(home.expanduser().absolute()) if home is not None else HOMES[part],
        program=(sys.executable, "-m", "shoal.cli.main"),
        options=_checked(part, context.args),
        rootless=rootless,
    )
    if line_file is not None and part is Part.MANAGER:
        raise Misuse("a manager joins nothing: leave out --line-file")
    text = unit_text(settings)
    line = _line_of(line_file)
    if dry_run:
        print(text, end="")
        return
    systemd.check_runs()
    _check_users(settings)
    if systemd.make_user(settings.user):
        print(f"Made user {settings.user}.")
    owner = "root" if settings.is_root else settings.user
    systemd.give_folder(Path(settings.home), owner)
    if line:
        systemd.put_secret(Path(settings.home) / LINE_FILE, f"{line}\n", owner)
    systemd.start_at_boot(unit_name(part), text)
    _tell(settings, has_line=bool(line))


@app.command()
def status(json: Json = False) -> None:
    """Show which services are installed here, whether they start at boot, and whether they run.

    Example:  `shoal service status`
    """
    import shutil

    from shoal.cli import screen, systemd

    rows = []
    for part in Part:
        name = unit_name(part)
        if not systemd.is_installed(name):
            rows.append({"service": name, "installed": False})
        elif shutil.which("systemctl") is None:
            rows.append({"service": name, "installed": True, "boot": "unknown", "now": "unknown"})
        else:
            boot, now = systemd.state_of(name)
            rows.append({"service": name, "installed": True, "boot": boot, "now": now})
    if json:
        screen.print_json(rows)
        return
    for row in rows:
        state = f"{row['now']}, at boot: {row['boot']}" if row["installed"] else "not installed"
        print(f"{row['service']:<22} {state}")
    if any(row["installed"] for row in rows):
        print("Its log: journalctl -u SERVICE -f")
    else:
        print("Install one with: shoal service install manager, or agent")


@app.command()
def uninstall(part: _Which) -> None:
    """Stop a service and remove its unit. Its files and its user stay.

    Example:  `shoal service uninstall agent`
    """
    from shoal.cli import systemd

    name = unit_name(part)
    if not systemd.is_installed(name):
        raise Misuse(f"{name} is not installed here: `shoal service status` lists what is")
    systemd.check_runs()
    systemd.remove(name)
    print(f"{name} is stopped and removed. Its files stay in its home ({HOMES[part]} unless you chose another).")


def _checked(part: Part, options: Sequence[str]) -> tuple[str, ...]:
    """Options that the command of the service understands: a typing error is found here, not in a log at boot."""
    from shoal.cli.commands import join, up

    given = tuple(options[1:] if options[:1] == ["--"] else options)
    for taken in ("--home", "--line-file", "--remove-line"):
        if any(word.partition("=")[0] == taken for word in given):
            raise Misuse(f"{taken} belongs before `--`: the service sets it itself")
    function = up.up if part is Part.MANAGER else join.join
    started = typer.Typer()
    started.command()(function)
    with typer.main.get_command(started).make_context(function.__name__, list(given)) as parsed:
        if parsed.params.get("line"):
            raise Misuse("a line in a unit can be read by everyone here: give it with --line-file, before `--`")
        for name, kind in typing.get_type_hints(function).items():
            if kind in (Path, Path | None) and (value := parsed.params.get(name)) is not None:
                _check_whole(Path(value), option=f"--{name.replace('_', '-')}")
    return given


def _check_whole(path: Path, *, option: str) -> None:
    """A service starts in another folder than the one where it is installed."""
    if not path.is_absolute():
        raise Misuse(f"{path} is relative: give {option} an absolute path")


def _check_users(settings: ServiceSettings) -> None:
    """The user must not own another service's keys, and must be able to start Python."""
    from shoal.cli import systemd

    for other in Part:
        if other is not settings.part and settings.user in systemd.users_of(unit_name(other)):
            raise Misuse(
                f"{settings.user} is the user of {unit_name(other)} on this machine, and a task must not reach the"
                " manager's keys: choose another --user"
            )
    if not settings.is_root and (closed := systemd.closed_to_others(Path(settings.program[0]))) is not None:
        raise Misuse(
            f"{settings.user} cannot start {settings.program[0]}: {closed} is closed to other users. Install Python and"
            " Shoal where all can read them, such as /opt/shoal, and run its `shoal service install`"
        )


def _line_of(file: Path | None) -> str:
    if file is None:
        return ""
    from shoal.cli.line_file import read_line
    from shoal.identity.join_code import JoinCode

    line = read_line(file, may_be_absent=False)
    JoinCode.parse(line)
    return line


def _tell(settings: ServiceSettings, *, has_line: bool) -> None:
    name = unit_name(settings.part)
    print(f"{name} is started, now and at every boot. Its log: journalctl -u {name} -f")
    if settings.part is Part.MANAGER:
        shoal = f"{Path(settings.program[0]).parent / 'shoal'}"
        print(f"Operate it as its user:  sudo -u {settings.user} {shoal} token create --home {settings.home}")
        return
    if settings.rootless:
        print(
            f"Warning: without root, tasks run as {settings.user} like the agent: they can read this device's keys and"
            " use its network."
        )
    else:
        print(f"Tasks run as {settings.user}, without network, and cannot read this device's keys.")
    if not has_line:
        where = Path(settings.home) / LINE_FILE
        print(
            f"If this device has not joined: write the line of `shoal token create` into {where}, as its owner alone."
        )
