"""`shoal files`: write a task's examples into a folder, to carry to devices behind thin links."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, Json, TaskArguments

if TYPE_CHECKING:
    from shoal.trainer.prepared_job import PreparedJob


def files(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task's file or folder, as for `shoal train`.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder to write into.")],
    arguments: TaskArguments = None,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Write the files that devices would fetch for a task: its examples and frozen tensors, each named by its hash.

    Example:  `shoal files examples/mnist --out /media/stick/shoal`, and on each device
    `shoal join shoal://… --files /media/stick/shoal`

    A device checks each file by its hash, and fetches what the folder lacks. Prepare the task with the same code and
    data as the job: other examples have other hashes.
    """
    import asyncio

    from shoal.cli import screen
    from shoal.cli.commands.train import pairs_of
    from shoal.cli.render.format import bytes_text, plural
    from shoal.runtime.paths import Paths
    from shoal.trainer.find_script import find_task_or_script
    from shoal.trainer.package import make_ready

    path, entry = find_task_or_script(task)
    kwargs = pairs_of(arguments or (), option="--set")
    prepared_in = Paths(home).prepared
    ready = asyncio.run(
        make_ready(path, entry, out=prepared_in, kwargs=kwargs, on_progress=screen.Teller(screen.err()))
    )
    written = _write(ready.prepared, out)
    size_bytes = sum(file.stat().st_size for file in written)
    if json:
        screen.print_json({"files": len(written), "bytes": size_bytes, "folder": str(out)})
    else:
        print(f"{plural(len(written), 'file')}, {bytes_text(size_bytes)}, in {out}")
        print(f"On each device that has the folder: shoal join … --files {out}")


def _write(prepared: PreparedJob, out: Path) -> list[Path]:
    """Each file once, whole or not at all."""
    import shutil

    from shoal.store.readable import write_by_hash

    out.mkdir(parents=True, exist_ok=True)
    sources = (*prepared.paths(prepared.train), *prepared.paths(prepared.test), *prepared.base_paths)
    written = []
    for source in dict.fromkeys(map(Path, sources)):
        target = out / source.name
        if not target.exists():
            with source.open("rb") as file:
                write_by_hash(out, lambda made, file=file: shutil.copyfileobj(file, made))  # type: ignore[misc]
        written.append(target)
    return written
