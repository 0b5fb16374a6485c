"""`shoal audit`: what operators did, by name, and whether the log is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, Json

if TYPE_CHECKING:
    from shoal.runtime.operator import Operator
    from shoal.wire.messages import ActView


def audit(
    about: Annotated[
        str,
        typer.Argument(
            metavar="[JOB|NODE]", help="Only acts about this job or device, by its whole name.", show_default=False
        ),
    ] = "",
    operator: Annotated[str, typer.Option(metavar="NAME", help="Only acts of this operator.", show_default=False)] = "",
    since: Annotated[
        str, typer.Option(metavar="SPAN", help="Only acts of the last 30m, 12h and so on.", show_default=False)
    ] = "",
    last_hash: Annotated[
        str,
        typer.Option(
            metavar="SHA256",
            help="A last hash that you noted earlier: fail unless the log still has it.",
            show_default=False,
        ),
    ] = "",
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """List what operators did: who, when, what, and what was refused. Checks that no row was changed or removed.

    Example:  `shoal audit --operator alice --since 24h`

    Note the last hash down outside the cluster: with --last-hash, a log that was written anew is found, too.
    """
    import time

    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import clean, parse_span
    from shoal.cli.render.plain_json import to_plain
    from shoal.cli.render.tables import acts_table
    from shoal.errors import PeerViolation
    from shoal.store.act_rows import FIRST_LINK, ActRow, first_broken

    after_s = time.time() - parse_span(since) if since else 0.0

    async def ask(asked: Operator) -> list[ActView]:
        return await asked.acts()

    acts = with_operator(home, ask)
    rows = [
        ActRow(
            seq=act.seq,
            at_s=act.at_s,
            operator=act.operator,
            certificate=act.certificate,
            manager=act.manager,
            kind=act.kind,
            subject=act.subject,
            text=act.text,
            is_refused=int(act.is_refused),
            sha256=act.sha256,
        )
        for act in acts
    ]
    broken = first_broken(rows)
    head = rows[-1].sha256 if rows else FIRST_LINK
    shown = [
        act for act in acts if about in ("", act.subject) and operator in ("", act.operator) and act.at_s >= after_s
    ]
    if json:
        screen.print_json({"acts": to_plain(shown), "is_whole": broken is None, "last_hash": head})
    elif shown:
        screen.out().print(acts_table(shown))
    else:
        screen.say("No operator did anything here yet." if not acts else "No act of the log is so.")
    if broken is not None:
        raise PeerViolation(f"the audit log is not whole: act {broken} was changed or removed. Look at a backup")
    if last_hash and last_hash not in (FIRST_LINK, *(row.sha256 for row in rows)):
        raise PeerViolation(f"the audit log does not have the hash {clean(last_hash, 64)}: it was written anew")
    if not json:
        screen.say(f"{len(rows)} acts, whole; the last hash is {head}")
