"""The command `shoal`: puts the commands together, and turns every error into one clear line and an exit code."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from shoal import features
from shoal.cli import help as help_text
from shoal.cli.commands import (
    attach,
    audit,
    authority,
    backup,
    check,
    contribute,
    demo,
    doctor,
    files,
    gc,
    jobs,
    join,
    logs,
    managers,
    model,
    new,
    nodes,
    plan,
    questions,
    service,
    simulate,
    status,
    token,
    train,
    up,
)
from shoal.cli.commands import (
    run as run_script,
)
from shoal.cli.exits import MEANING, Exit, exit_code_of
from shoal.errors import ShoalError
from shoal.version import __version__

DEBUG_VARIABLE = "SHOAL_DEBUG"

#: Newer releases of typer carry their own click. The root of its errors is found from one that both export.
_UsageProblem = cast("type[Exception]", typer.BadParameter.__mro__[2])

#: What newer releases raise where a group of commands is called with nothing behind it; older ones print the help.
_NO_ARGUMENTS = "NoArgsIsHelpError"

_EPILOGUE = "Exit codes:\n" + "".join(f"\n- `{code.value:>3}`  {text}" for code, text in MEANING.items())

app = typer.Typer(
    name="shoal",
    epilog=_EPILOGUE,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_START, _WORK, _LOOK, _KEEP, _ADDED = "Start", "Train", "Look", "Keep", "From other packages"


def _add_feature(feature: str, panel: str, *, name: str | None = None) -> None:
    """Add a feature's command, if it is there and has one."""
    if feature not in {each.name for each in features.described() if each.command is not None}:
        return
    try:
        command = features.provided("command", by=feature)
    # Code of others: without it, every other command works.
    except (Exception, SystemExit) as error:
        features.skip(feature, f"its command cannot be imported ({type(error).__name__}: {error})")
        return
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name or feature, rich_help_panel=panel)
    else:
        app.command(name or feature, rich_help_panel=panel)(command)


app.command(rich_help_panel=_START)(demo.demo)
app.command(rich_help_panel=_START)(new.new)
app.command(rich_help_panel=_START)(up.up)
app.command(rich_help_panel=_START)(join.join)
app.add_typer(token.app, name="token", rich_help_panel=_START)
app.add_typer(authority.app, name="authority", rich_help_panel=_START)
app.add_typer(service.app, name="service", rich_help_panel=_START)
app.command(rich_help_panel=_START)(doctor.doctor)
app.command(rich_help_panel=_WORK)(check.check)
app.command(rich_help_panel=_WORK)(files.files)
app.command(rich_help_panel=_WORK)(contribute.contribute)
app.add_typer(contribute.app, name="contributions", rich_help_panel=_WORK)
app.command(rich_help_panel=_WORK)(train.train)
app.command(rich_help_panel=_WORK)(run_script.run)
app.command(rich_help_panel=_WORK)(attach.attach)
app.command(rich_help_panel=_WORK)(questions.tally)
app.command(rich_help_panel=_WORK)(questions.evaluate)
_add_feature("flock", _WORK)
app.command(rich_help_panel=_WORK)(simulate.simulate)
app.add_typer(plan.app, name="plan", rich_help_panel=_WORK)
app.add_typer(model.app, name="model", rich_help_panel=_WORK)
_add_feature("browser", _WORK)
_add_feature("offload", _WORK)
app.command(rich_help_panel=_LOOK)(status.status)
_add_feature("console", _LOOK)
app.command(rich_help_panel=_LOOK)(logs.logs)
_add_feature("exporter", _LOOK, name="metrics")
app.add_typer(nodes.app, name="nodes", rich_help_panel=_LOOK)
app.add_typer(jobs.app, name="jobs", rich_help_panel=_LOOK)
app.add_typer(managers.app, name="managers", rich_help_panel=_LOOK)
app.command(rich_help_panel=_LOOK)(audit.audit)
app.command(rich_help_panel=_KEEP)(backup.backup)
app.command(rich_help_panel=_KEEP)(backup.restore)
app.command(rich_help_panel=_KEEP)(gc.gc)


@app.command(rich_help_panel=_LOOK)
def version() -> None:
    """Print the version.

    Example:  `shoal version`
    """
    _print_version(True)


def _add_others() -> None:
    """Add the commands of features that other packages bring. None takes the name of one of ours."""
    ours = {each.name or getattr(each.callback, "__name__", "") for each in app.registered_commands}
    ours |= {str(each.name) for each in app.registered_groups}
    for feature in features.described():
        if feature.name in ours - features.OWN.keys():
            features.skip(feature.name, "Shoal has a command of this name")
        elif feature.name not in features.OWN:
            _add_feature(feature.name, _ADDED)


_add_others()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def shoal(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
    # Taken out of the arguments by `run`, so that it may stand anywhere; here for the help.
    debug: Annotated[bool, typer.Option("--debug", help=f"Show where an error arose (or {DEBUG_VARIABLE}=1).")] = False,
    help_all: Annotated[bool, typer.Option(help_text.ALL, help="Show every option of a command.")] = False,
) -> None:
    """Train PyTorch models on the devices people already have, and keep training when they are slow, leave or die."""


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; give its exit code."""
    given, debug = _without_debug(arguments)
    given, shows_all = _without(given, help_text.ALL)
    command = typer.main.get_command(app)
    help_text.install(command, shows_all=shows_all)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a bar or an arrow shows "?" instead of ending the command.
            stream.reconfigure(errors="replace")
    try:
        result = command.main(args=[*given, "--help"] if shows_all else given, prog_name="shoal", standalone_mode=False)
    except _UsageProblem as problem:
        if type(problem).__name__ == _NO_ARGUMENTS:
            # Nothing was typed after it: that asks for the help. With rich it is printed by now, and the text is empty.
            print(_told(problem), end="")
            return Exit.OK
        _complain(_usage_text(problem))
        return Exit.MISUSE
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        return Exit.INTERRUPTED
    except Exception as error:
        if debug:
            raise
        if (surroundings := _surroundings_text(error)) is not None:
            _complain(surroundings)
            return Exit.MISUSE
        _complain(_error_text(error))
        return exit_code_of(error)
    return result if isinstance(result, int) else Exit.OK


def _without(arguments: Sequence[str], option: str) -> tuple[list[str], bool]:
    """Return the arguments without an option that may stand anywhere before ``--``, and whether it was there."""
    own = list(arguments)
    end = own.index("--") if "--" in own else len(own)
    kept = [word for word in own[:end] if word != option] + own[end:]
    return kept, len(kept) < len(own)


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    kept, debug = _without(arguments, "--debug")
    debug = debug or os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")
    if debug:
        # Processes that this one starts shall tell as much.
        os.environ[DEBUG_VARIABLE] = "1"
    return kept, debug


#: A system refuses with these what a defect does not explain: a read-only or full disk, files of another user.
_REFUSED_BY_SYSTEM = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


def _surroundings_text(error: Exception) -> str | None:
    """Return a sentence for an error of the disk or of the user's rights, or None if it is another error."""
    if not isinstance(error, OSError):
        return None
    if "temporary directory" in str(error):
        return "no folder for temporary files can be written: set TMPDIR to one that this user may write in"
    if error.errno in _REFUSED_BY_SYSTEM and error.filename is not None:
        from shoal.cli.options import unusable

        return unusable(error, os.fsdecode(error.filename))
    return None


def _error_text(error: Exception) -> str:
    if isinstance(error, ShoalError):
        return str(error)
    kind = type(error).__name__
    return f"{kind}: {error}. This is a defect in Shoal: run it again with --debug and report what it prints"


def _usage_text(problem: Exception) -> str:
    text = _told(problem)
    context = getattr(problem, "ctx", None)
    command = context.command_path if context is not None else "shoal"
    return f"{text}{'' if text.endswith(('.', '?', '!')) else '.'} See: {command} --help"


def _told(problem: Exception) -> str:
    return cast(str, problem.format_message()) if hasattr(problem, "format_message") else str(problem)


def _complain(text: str) -> None:
    from shoal.cli.render.format import clean

    red, plain = ("\x1b[1;31m", "\x1b[0m") if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else ("", "")
    print(f"{red}shoal:{plain} {clean(text)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
