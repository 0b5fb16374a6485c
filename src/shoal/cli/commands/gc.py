"""`shoal gc`: remove what no job names, on the manager's disk and on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home

if TYPE_CHECKING:
    from shoal.runtime.operator import Operator


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Remove what no job names: uploads at the manager, prepared data on this machine, files of writers that died.

    Example:  `shoal gc --dry-run`

    What was written within the last hour stays: the job that will name it may be on its way.
    """
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import clean, plural
    from shoal.runtime import prepared_cache
    from shoal.runtime.paths import Paths
    from shoal.store.files import bytes_below, remove_stale

    async def ask(operator: Operator) -> tuple[str, frozenset[str]]:
        first_models = await operator.first_models()
        return await operator.collect_garbage(dry_run=dry_run), first_models

    told, first_models = with_operator(home, ask)
    places = Paths(home)
    surplus = prepared_cache.surplus(places.prepared, first_models)
    size = sum(map(bytes_below, surplus))
    if not dry_run:
        prepared_cache.remove(surplus)
        for folder in (places.prepared, places.prepared / "shards"):
            if folder.is_dir():
                remove_stale(folder)
    screen.say(f"At the manager: {clean(told)}.")
    verb = "would go" if dry_run else "went"
    screen.say(f"Prepared on this machine: {size / 1e6:,.1f} MB in {plural(len(surplus), 'file')} {verb}.")
