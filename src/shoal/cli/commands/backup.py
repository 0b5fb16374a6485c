"""`shoal backup` and `shoal restore`: a cluster in one file, and a cluster out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, Json


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it holds the cluster's keys.")],
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Copy the cluster of this machine into one file, while its manager runs: keys, members, jobs, models, data.

    Example:  `shoal backup /mnt/usb/shoal-monday.tar`

    Run it as the user of the manager. The file lets its reader act as any member of the cluster: keep it like a key.
    """
    from shoal.cli import screen
    from shoal.cli.options import check_output
    from shoal.cli.render.format import plural
    from shoal.cli.render.plain_json import to_plain
    from shoal.runtime.backup import back_up

    check_output(file)
    made = back_up(home, file)
    if json:
        screen.print_json(to_plain(made))
        return
    screen.say(
        f"Wrote {file}: cluster {made.cluster}, {plural(made.jobs, 'job')}, {plural(made.files, 'file')},"
        f" {made.size_bytes / 1e6:,.1f} MB."
    )
    for lost in made.missing:
        screen.say(f"Not on this disk any more, so not in the backup: {lost}", "yellow")
    screen.say("Warning: the file holds the cluster's keys, unencrypted. Its mode is 0600; keep it so.", "yellow")


def restore(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="A file that `shoal backup` wrote; not with --store.", show_default=False
        ),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URL",
            help="A PostgreSQL that was restored from a dump or a snapshot: make it fit to go on from.",
        ),
    ] = "",
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Make the cluster of a backup again, on this or another machine. Start it with `shoal up` afterwards.

    Example:  `shoal restore /mnt/usb/shoal-monday.tar --home /var/lib/shoal`

    Example:  `shoal restore --store postgresql://shoal@db.lan/shoal` after `pg_restore`

    Never start the old manager again: the cluster must have one.
    """
    import time

    from shoal.cli import screen
    from shoal.cli.render.format import plural
    from shoal.cli.render.plain_json import to_plain
    from shoal.errors import Misuse
    from shoal.runtime.backup import mend_restored
    from shoal.runtime.backup import restore as restored

    if store:
        if file is not None:
            raise Misuse("A database is restored with its own tools. Name a FILE or --store, not both.")
        mended = mend_restored(store, home)
        if json:
            screen.print_json(to_plain(mended))
            return
        for job, line in mended.lines():
            screen.say(f"{job}: {line}" if job else line)
        return
    if file is None:
        raise Misuse("Name the FILE that `shoal backup` wrote, or --store for a restored PostgreSQL.")
    made = restored(file, home)
    if json:
        screen.print_json(to_plain(made))
        return
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(made.made_s))
    screen.say(f"Cluster {made.cluster} as of {when} is in {home}, with {plural(made.jobs, 'job')}.")
    screen.say(
        "Start it under the address that devices know: shoal up --home"
        f" {home} (with the --port and --advertise it had). At another address, see docs/operations/backup.md."
    )
    screen.say(
        "Join lines are void: make new ones. Repeat the revocations that you made since the backup. A device that"
        " joined since joins again, with --anew.",
        "yellow",
    )
