"""`shoal contribute`: a device gives labelled entries to a shared set. `shoal contributions`: an operator decides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, Json, hand_home_to_subcommand
from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.runtime.operator import Operator

app = typer.Typer(rich_markup_mode="markdown")

_Set = Annotated[str, typer.Argument(metavar="SET", help="The name of the shared set.")]
_Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE...", help="Files by their hashes, as `shoal contributions` shows them; or --from."),
]
_From = Annotated[str, typer.Option("--from", metavar="NODE", help="All that wait, or stand, of this device.")]


def contribute(
    name: _Set,
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="Labelled entries: .jsonl, .csv or .npz.")],
    home: Home = DEFAULT_HOME,
) -> None:
    """Give labelled entries of this device to a shared set.

    Example:  `shoal contribute weeds notes.jsonl`

    Each entry names its label `y`, `label` or `labels`. Entries are used once an operator approved them.
    They leave this device: operators can read them, and so can devices that train on them.
    """
    import asyncio

    from shoal.cli import screen
    from shoal.cli.render.format import clean
    from shoal.runtime.shared_sets import contribute as give

    for answer in asyncio.run(give(home, name, files)):
        screen.say(clean(answer))


@app.callback(invoke_without_command=True)
def contributions(context: typer.Context, home: Home = DEFAULT_HOME, json: Json = False) -> None:
    """List what devices gave to shared sets, or approve or reject it.

    Example:  `shoal contributions`, then `shoal contributions approve weeds 3f9a2c`
    """
    if context.invoked_subcommand is not None:
        hand_home_to_subcommand(home)
        return
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.plain_json import to_plain
    from shoal.cli.render.tables import contributions_table

    found = with_operator(home, lambda operator: operator.contributions())
    if json:
        screen.print_json(to_plain(found))
    elif found:
        screen.out().print(contributions_table(found))
    else:
        screen.say("No device has given entries to a shared set yet.")


@app.command()
def approve(name: _Set, files: _Files = None, giver: _From = "", home: Home = DEFAULT_HOME) -> None:
    """Let jobs train on these files from now on.

    Example:  `shoal contributions approve weeds 3f9a2c`, or all of one device: `... approve weeds --from attic-pi4`
    """
    _settle(home, name, files or [], giver, approve=True)


@app.command()
def reject(name: _Set, files: _Files = None, giver: _From = "", home: Home = DEFAULT_HOME) -> None:
    """Reject these files for good, also some that were approved. Jobs that were started with them keep them.

    Example:  `shoal contributions reject weeds 3f9a2c`
    """
    _settle(home, name, files or [], giver, approve=False)


@app.command()
def pull(
    name: _Set,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file by its hash.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write it.")],
    home: Home = DEFAULT_HOME,
) -> None:
    """Write a file of entries here, to look at it before you decide.

    Example:  `shoal contributions pull weeds 3f9a2c --out look.jsonl`
    """
    from shoal.cli import screen
    from shoal.cli.connect import with_operator

    async def ask(operator: Operator) -> None:
        (sha256,) = await chosen(operator, name, [file], "", approve=False)
        await operator.pull_entries(sha256, out)

    with_operator(home, ask)
    screen.say(f"Written to {out}.")


def _settle(home: Path, name: str, files: list[str], giver: str, *, approve: bool) -> None:
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import clean
    from shoal.wire.limits import SETTLED_MAX

    if bool(files) == bool(giver):
        raise Misuse("name files by their hashes, or a device with --from")

    async def ask(operator: Operator) -> list[str]:
        hashes = await chosen(operator, name, files, giver, approve=approve)
        pages = [hashes[at : at + SETTLED_MAX] for at in range(0, len(hashes), SETTLED_MAX)]
        return [await operator.settle_contributions(name, page, approve=approve) for page in pages]

    for answer in with_operator(home, ask):
        screen.say(clean(answer))


async def chosen(operator: Operator, name: str, files: list[str], giver: str, *, approve: bool) -> list[str]:
    """Return the hashes that a person means, of those that the manager lists now: what comes later is not decided."""
    found = await operator.contributions(name)
    open_states = ("pending",) if approve else ("pending", "approved")
    if giver:
        hashes = [view.sha256 for view in found if view.node == giver and view.state in open_states]
        if not hashes:
            raise Misuse(f"{giver} has no file in {name} to decide about: `shoal contributions` lists all")
        return hashes
    return [_one(found_hashes, wanted, name) for wanted in files for found_hashes in [[v.sha256 for v in found]]]


def _one(hashes: list[str], wanted: str, name: str) -> str:
    fitting = [sha256 for sha256 in hashes if wanted and sha256.startswith(wanted.lower())]
    if len(fitting) != 1:
        which = "no file" if not fitting else f"{len(fitting)} files"
        raise Misuse(f"{wanted[:80]!r} is the start of {which} in {name}: `shoal contributions` lists them")
    return fitting[0]
