"""`shoal console`: a page in a browser that shows the cluster live and as it was."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home
from shoal.errors import Misuse
from shoal.extras import install_command

if TYPE_CHECKING:
    from shoal.console.serve import ConsoleReady, Options

PORT = 7072
_END_S = 10.0


def console(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 lets the system choose.")
    ] = PORT,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="The address or name that browsers use; other than loopback it needs TLS."
        ),
    ] = "127.0.0.1",
    certificate: Annotated[
        Path | None, typer.Option(metavar="PEM", help="The server's certificate, with its chain.", show_default=False)
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="PEM", help="Its private key.", show_default=False)] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="Let it act, not only show: models, devices, jobs, or several with commas.",
            show_default=False,
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    home: Home = DEFAULT_HOME,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON when it listens.")] = False,
    leash: Annotated[bool, typer.Option("--leash", hidden=True)] = False,
) -> None:
    """Show the cluster in a browser: live, and as it was in the last hour. It changes nothing unless you --allow it.

    Example:  `shoal console`  or  `shoal console --allow models,devices`
    """
    import asyncio

    check_installed()
    from shoal.cli.connect import with_operator
    from shoal.console.serve import Options, serve
    from shoal.runtime import log_lines

    named = tuple(dict.fromkeys(name.strip() for each in allow or () for name in each.split(",") if name.strip()))
    options = Options(home=home, host=host, port=port, certificate=certificate, key=key, allow=named)
    # Said now where there is no cluster to show; that its manager is away is the page's to tell.
    with_operator(home, _nothing)
    log_lines.set_up(quiet=False)
    if leash:
        from shoal.runtime.die_with_parent import end_with_starter

        end_with_starter()

    def on_ready(ready: ConsoleReady) -> None:
        if json:
            _print_json(ready)
        else:
            _announce(ready, options, opens=not no_open)

    asyncio.run(serve(options, on_ready))


async def _nothing(_: object) -> None:
    """Reaching the operator's files is all that is asked."""


def check_installed() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise Misuse(f"the console needs two packages more: {install_command('console')}")


class Beside:
    """The console as a child of `shoal up`: it ends with it, however that ends."""

    def __init__(self, home: Path) -> None:
        check_installed()
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, keeps_stdout_clean: bool) -> None:
        from shoal.trainer.spawn import command

        words = command("shoal.cli.main", "console", "--home", str(self._home), "--no-open", "--leash")
        stdout = sys.stderr if keeps_stdout_clean else None
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=stdout, start_new_session=True)

    def end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _print_json(ready: ConsoleReady) -> None:
    from shoal.cli import screen

    told = {"port": ready.port, "origin": ready.origin, "link": ready.new_link()}
    screen.print_json(told | {"viewer_token": ready.viewer_token, "operator_token": ready.operator_token})


def _announce(ready: ConsoleReady, options: Options, *, opens: bool) -> None:
    from rich.text import Text

    from shoal.cli import screen

    terminal = screen.out()

    def row(label: str, text: str, style: str = "") -> None:
        terminal.print(Text.assemble((f"  {label:<9}", "dim"), (text, style)), soft_wrap=True)

    terminal.print(f"The console listens at {ready.origin}.", soft_wrap=True)
    if options.is_open:
        row("open", ready.origin, "bold green")
        row("viewers", f"type {ready.viewer_token}")
        if ready.operator_token:
            row("operators", f"type {ready.operator_token}")
        row("secret", "a token lets in as long as this runs; start it again for new ones")
    else:
        link = ready.new_link()
        row("open", link, "bold green")
        again = "press Enter here for another" if sys.stdin.isatty() else "`shoal console --port 0` gives another"
        row("once", f"the link opens one browser within a minute; {again}")
        if os.environ.get("SSH_CONNECTION"):
            row("from afar", f"ssh -L {ready.port}:127.0.0.1:{ready.port} THIS-MACHINE, then open the link there")
        elif opens and _has_desktop():
            import webbrowser

            webbrowser.open(link)
        _link_on_enter(ready)
    row("may", f"show, and act on {', '.join(options.allow)}" if options.allow else "show, and change nothing")
    if sys.stdin.isatty():
        row("end", "Ctrl-C")


def _has_desktop() -> bool:
    """Elsewhere a browser of text would take this terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _link_on_enter(ready: ConsoleReady) -> None:
    import asyncio

    if not sys.stdin.isatty():
        return
    loop, typed = asyncio.get_running_loop(), sys.stdin.fileno()

    def print_link() -> None:
        if os.read(typed, 4096):
            print(f"  open     {ready.new_link()}", flush=True)
        else:
            loop.remove_reader(typed)

    loop.add_reader(typed, print_link)
