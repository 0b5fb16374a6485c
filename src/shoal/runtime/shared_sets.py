"""Shared sets away from the manager: how a member gives entries, and how an operator gets those that are approved.

An operator's machine keeps approved files by their hashes, and a folder of links for each state of a set, so that a
job is prepared from one state.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from shoal.data.csv_rows import csv
from shoal.data.entries import files_of
from shoal.data.json_lines import jsonl
from shoal.data.npz_rows import npz
from shoal.data.shared_entries import distinct
from shoal.errors import Misuse, ShoalError, Unreachable
from shoal.identity.enrolment import Enrolled
from shoal.net.grpc import GrpcLink
from shoal.runtime.paths import Paths
from shoal.store.contribution_rows import APPROVED, PENDING
from shoal.wire.messages import Contribute, ContributionView, Done, is_id


class _Rows(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


#: The reader of files with this ending.
_READERS: dict[str, Callable[[Path], _Rows]] = {".jsonl": jsonl, ".csv": csv, ".npz": npz}

#: How often a job that waits for entries asks for them.
ASK_EVERY_S = 5.0


def check_set(name: str) -> None:
    if not is_id(name):
        raise Misuse(f"{name[:80]!r} cannot be the name of a shared set: use 1 to 63 of a-z, 0-9 and -")


def packed(paths: Iterable[Path]) -> list[bytes]:
    """Return the labelled entries of files as a manager takes them."""
    files: list[bytes] = []
    for path in paths:
        reader = _READERS.get(path.suffix)
        if reader is None:
            raise Misuse(f"{path} cannot be read as entries: its name must end with {', '.join(_READERS)}")
        rows = reader(path)
        files += files_of((rows[index] for index in range(len(rows))), source=str(path))
    if not files:
        raise Misuse("these files hold no entries")
    return files


async def contribute(home: Path, name: str, paths: Sequence[Path]) -> list[str]:
    """Give entries to a shared set as the device of this home. Return what the manager answered about each file. A file
    that it has already counts once, so this may be run again."""
    check_set(name)
    files = await asyncio.to_thread(packed, paths)
    try:
        member = Enrolled.load(Paths(home).node)
    except (OSError, ShoalError):
        raise Misuse(f"{home} is not the home of a device of a cluster: join one first (`shoal join`)") from None
    link = GrpcLink(member.identity, server_node=member.manager_node, endpoint=member.manager_endpoint)
    told = []
    try:
        for data in files:
            with tempfile.NamedTemporaryFile() as file:
                file.write(data)
                file.flush()
                given = Contribute(set=name, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
                answer = await link.upload(given, Path(file.name))
            assert isinstance(answer, Done)
            told.append(answer.reason)
    finally:
        await link.close()
    return told


class SharedSet:
    """One shared set as an operator sees it."""

    def __init__(
        self,
        name: str,
        places: Paths,
        *,
        ask: Callable[[str], Awaitable[list[ContributionView]]],
        fetch: Callable[[str, Path], Awaitable[None]],
    ) -> None:
        """``ask``: for the contributions to a set. ``fetch``: writes a file of this hash, verified, to a path."""
        check_set(name)
        self._name = name
        self._folder = places.prepared / "shared"
        self._ask = ask
        self._fetch = fetch

    async def when(self, least: int, tell: Callable[[str], object]) -> Path:
        """Wait until operators approved this many distinct entries. Return a folder with the files that have them."""
        told = ""
        while True:
            try:
                folder, text = await self._look(least)
            except Unreachable as error:
                folder, text = None, f"the manager cannot be asked: {error}"
            if text != told:
                tell(text)
                told = text
            if folder is not None:
                return folder
            await asyncio.sleep(ASK_EVERY_S)

    async def _look(self, least: int) -> tuple[Path | None, str]:
        found = await self._ask(self._name)
        approved = _approved(found)
        count = sum(view.entries for view in found if view.state == APPROVED)
        waiting = sum(view.entries for view in found if view.state == PENDING)
        folder = None
        if approved and count >= least:
            folder = await self._fetched(approved)
            # The same entry may be in several files.
            count = len(await asyncio.to_thread(distinct, sorted(folder.iterdir())))
            # Fetching takes its time: an operator may have rejected one of them by now.
            if count >= least and not set(approved) <= set(_approved(await self._ask(self._name))):
                return None, f"an operator rejected a file of {self._name} meanwhile: the others are counted again"
        text = f"{self._name} has {count:,} of {least:,} approved entries; {waiting:,} wait for approval"
        return (folder if count >= least else None), text

    async def _fetched(self, hashes: Sequence[str]) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        for sha256 in hashes:
            if not await asyncio.to_thread(_is_whole, self._folder / sha256):
                await self._fetch(sha256, self._folder / sha256)
        state = hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]
        folder = self._folder / f"{self._name}-{state}"
        await asyncio.to_thread(_fill, folder, [self._folder / sha256 for sha256 in hashes])
        return folder


def _approved(found: Iterable[ContributionView]) -> list[str]:
    return sorted(view.sha256 for view in found if view.state == APPROVED)


def _fill(folder: Path, files: Sequence[Path]) -> None:
    """Make a folder hold these files, as they are now, and no others."""
    folder.mkdir(exist_ok=True)
    names = {file.name for file in files}
    for path in folder.iterdir():
        if path.name not in names or not _is_whole(path):
            path.unlink()
    for file in files:
        if not (folder / file.name).exists():
            # Where files cannot be linked, they are copied.
            with contextlib.suppress(OSError):
                os.link(file, folder / file.name)
                continue
            shutil.copyfile(file, folder / file.name)


def _is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == path.name
    except FileNotFoundError:
        return False
