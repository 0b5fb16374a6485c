"""A disk that loses power or runs full: it records a program's calls on a real directory, and gives the states that a
crash may leave.

Knows files, names and flushes, not what they hold. It reads POSIX strictly, more so than any one file system:

- bytes of a file are safe once the file was flushed; of those written since, any part may be missing, cut or zero;
- a name that was made, changed or removed is so for good once its directory was flushed; of the changes since, any may
  be missing, whatever their order. A rename happens or does not, though the old name may stay beside the new one;
- a killed process loses nothing that it asked for, whether it is safe or not: the next one finds it all.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Stopped(BaseException):
    """The process is dead: what it wanted to do next does not happen. No handler of errors may catch it."""


@dataclass(slots=True)
class _File:
    #: As it was when it was last flushed.
    safe: bytes = b""
    #: Since then, in order: where, and what.
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    mtime_ns: int = 0

    @property
    def grows(self) -> bool:
        return bool(self.writes)

    @property
    def now(self) -> bytes:
        return _written(self.safe, self.writes)


@dataclass(frozen=True, slots=True)
class _Change:
    """To the names of a directory: one that points somewhere from now on, one that is gone, or, for a rename, both."""

    points: tuple[str, int] | None = None
    gone: str | None = None


@dataclass(slots=True)
class _Directory:
    safe: dict[str, int] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)

    @property
    def grows(self) -> bool:
        """Whether a flush takes room: removing names does not."""
        return any(change.points for change in self.changes)

    @property
    def now(self) -> dict[str, int]:
        return _changed(self.safe, self.changes)


class CrashDisk:
    """One directory, everything below it, and what of that would survive a power cut at this moment."""

    def __init__(self, root: Path, chance: np.random.Generator, *, deaf_to: str = "") -> None:
        """``deaf_to`` is for a look at whether a check can fail: flushes of a "file" or a "directory" do nothing."""
        self._root = root
        self._chance = chance
        self._deaf_to = deaf_to
        self._things: dict[int, _File | _Directory] = {}
        #: The system's numbers are used again once a file is gone; ours are not.
        self._number_of: dict[int, int] = {}
        self._asked = 0
        self._stop_at = 0
        self._full_from = 0
        self._dead = False
        self._adopt()

    # What the caller decides -----------------------------------------------------------------------------

    def stop_at(self, request: int) -> None:
        """Let the process die at this request, counted from now; a write is done in part. 0: it lives."""
        self._asked, self._stop_at, self._dead = 0, request, False

    def full_from(self, request: int) -> None:
        """Have no room from this request on, counted from now. 0: there is room."""
        self._asked, self._full_from = 0, request

    @property
    def asked(self) -> int:
        """Requests that change the disk or flush it, since the last ``stop_at`` or ``full_from``."""
        return self._asked

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Everything this process does below the directory passes by here."""
        disk, flat = self, io.FileIO

        opened: list[io.FileIO] = []

        class RecordedFile(flat):  # type: ignore[misc, valid-type]
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                opened.append(self)

            def write(self, data: ReadableBuffer, /) -> int:
                return disk._write(super().write, self, bytes(data))

        replaced: list[tuple[Any, str, Any]] = [
            (os, "open", self._opening(os.open)),
            (os, "fsync", self._flushing(os.fsync)),
            (os, "replace", self._renaming(os.replace)),
            (os, "unlink", self._removing(os.unlink)),
            (os, "mkdir", self._making(os.mkdir)),
            (io, "FileIO", RecordedFile),
        ]
        originals = [(where, name, getattr(where, name)) for where, name, _ in replaced]
        try:
            for where, name, function in replaced:
                setattr(where, name, function)
            yield
        finally:
            for where, name, function in originals:
                setattr(where, name, function)
            if self._dead:  # as the system does for a dead process; its locks go with them
                for file in opened:
                    file.close()

    def cut_power(self) -> None:
        """Leave on the disk what a power cut may leave of it, drawn by chance."""
        self._check()
        left = {number: self._left(thing) for number, thing in self._things.items()}
        shutil.rmtree(self._root)
        self._put(self._root, 0, left)
        self._adopt()

    # What the process asks for ---------------------------------------------------------------------------

    def _opening(self, original: Callable[..., int]) -> Callable[..., int]:
        def open_(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            place = self._place(path)
            if place is None or not flags & os.O_CREAT or os.path.exists(path):
                return original(path, flags, *rest, **named)
            self._next(needs_room=True)
            descriptor = original(path, flags, *rest, **named)
            self._add(place, _File(), os.fstat(descriptor).st_ino)
            return descriptor

        return open_

    def _making(self, original: Callable[..., None]) -> Callable[..., None]:
        def mkdir(path: Any, *rest: Any, **named: Any) -> None:
            place = self._place(path)
            if place is None or os.path.exists(path) or not os.path.exists(os.path.dirname(path)):
                return original(path, *rest, **named)
            self._next(needs_room=True)
            original(path, *rest, **named)
            self._add(place, _Directory(), os.stat(path).st_ino)
            return None

        return mkdir

    def _renaming(self, original: Callable[..., None]) -> Callable[..., None]:
        def replace(source: Any, target: Any, **named: Any) -> None:
            old, new = self._place(source), self._place(target)
            if old is None or new is None:
                return original(source, target, **named)
            assert old[0] is new[0], "renames between directories are not modelled"
            self._next(needs_room=True)
            number = self._number_of[os.stat(source).st_ino]
            if os.path.exists(target):
                self._number_of.pop(os.stat(target).st_ino)
            original(source, target, **named)
            new[0].changes.append(_Change(points=(new[1], number), gone=old[1]))
            return None

        return replace

    def _removing(self, original: Callable[..., None]) -> Callable[..., None]:
        def unlink(path: Any, **named: Any) -> None:
            place = self._place(path)
            if place is None or not os.path.exists(path):
                return original(path, **named)
            self._next(needs_room=False)
            # Its number may soon be that of a file that is none of ours.
            self._number_of.pop(os.stat(path).st_ino)
            original(path, **named)
            place[0].changes.append(_Change(gone=place[1]))
            return None

        return unlink

    def _flushing(self, original: Callable[[int], None]) -> Callable[[int], None]:
        def fsync(descriptor: int) -> None:
            facts = os.fstat(descriptor)
            number = self._number_of.get(facts.st_ino)
            if number is None:
                return original(descriptor)
            thing = self._things[number]
            self._next(needs_room=thing.grows)
            # The real flush is spared: what is safe is decided here, and nobody cuts this machine's power.
            match thing:
                case _File() if self._deaf_to != "file":
                    thing.safe, thing.writes, thing.mtime_ns = thing.now, [], facts.st_mtime_ns
                case _Directory() if self._deaf_to != "directory":
                    thing.safe, thing.changes = thing.now, []
            return None

        return fsync

    def _write(self, original: Callable[[bytes], int], file: io.FileIO, data: bytes) -> int:
        if self._dead:
            return len(data)  # a dead process's buffers are dropped, not written
        number = self._number_of.get(os.fstat(file.fileno()).st_ino)
        if number is None:
            return original(data)
        thing = self._things[number]
        assert isinstance(thing, _File)
        try:
            self._next(needs_room=True)
        except (Stopped, OSError):
            fits = int(self._chance.integers(0, len(data) + 1))
            thing.writes.append((file.tell(), data[:fits]))
            original(data[:fits])
            raise
        thing.writes.append((file.tell(), data))
        return original(data)

    def _next(self, *, needs_room: bool) -> None:
        self._asked += 1
        if self._stop_at and self._asked >= self._stop_at:
            self._dead = True
            raise Stopped
        if needs_room and self._full_from and self._asked >= self._full_from:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # What there is ---------------------------------------------------------------------------------------

    def _place(self, path: Any) -> tuple[_Directory, str] | None:
        """The directory that a path lies in, and its name there; None where it is not on this disk."""
        try:
            parts = Path(os.fspath(path)).relative_to(self._root).parts
        except (TypeError, ValueError):
            return None
        if not parts:
            return None
        directory = self._things[0]
        for part in parts[:-1]:
            assert isinstance(directory, _Directory)
            number = directory.now.get(part)
            if number is None:
                return None
            directory = self._things[number]
        assert isinstance(directory, _Directory)
        return directory, parts[-1]

    def _add(self, place: tuple[_Directory, str], thing: _File | _Directory, system_number: int) -> None:
        number = len(self._things)
        self._things[number] = thing
        self._number_of[system_number] = number
        place[0].changes.append(_Change(points=(place[1], number)))

    def _adopt(self) -> None:
        """Take what lies in the real directory for safe."""
        self._things.clear()
        self._number_of.clear()
        self._adopt_directory(self._root)

    def _adopt_directory(self, path: Path) -> int:
        directory = _Directory()
        number = len(self._things)
        self._things[number] = directory
        self._number_of[path.stat().st_ino] = number
        for child in sorted(path.iterdir()):
            facts = child.stat()
            if stat.S_ISDIR(facts.st_mode):
                directory.safe[child.name] = self._adopt_directory(child)
                continue
            directory.safe[child.name] = len(self._things)
            self._number_of[facts.st_ino] = len(self._things)
            self._things[len(self._things)] = _File(safe=child.read_bytes(), mtime_ns=facts.st_mtime_ns)
        return number

    def _check(self, number: int = 0, path: Path | None = None) -> None:
        """A request that passed us by would make every result worthless."""
        path = path or self._root
        thing = self._things[number]
        if isinstance(thing, _File):
            assert path.read_bytes() == thing.now, f"{path} was changed behind the model's back"
            return
        assert sorted(os.listdir(path)) == sorted(thing.now), f"names in {path} were changed behind the model's back"
        for name, child in thing.now.items():
            self._check(child, path / name)

    # What may be left ------------------------------------------------------------------------------------

    def _left(self, thing: _File | _Directory) -> _File | _Directory:
        if isinstance(thing, _Directory):
            return _Directory(safe=_changed(thing.safe, self._some_changes(thing.changes)))
        return _File(safe=_written(thing.safe, self._some_writes(thing.writes)), mtime_ns=thing.mtime_ns)

    def _some_changes(self, changes: list[_Change]) -> list[_Change]:
        match self._chance.integers(0, 4):
            case 0:
                return []
            case 1:
                return changes
            case 2:
                return changes[: int(self._chance.integers(0, len(changes) + 1))]
        kept = [change for change in changes if self._chance.random() < 0.5]
        return [_Change(points=each.points) if each.points and self._chance.random() < 0.2 else each for each in kept]

    def _some_writes(self, writes: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        match self._chance.integers(0, 4):
            case 0:
                return []
            case 1:
                return writes
            case 2:  # the length was noted, the bytes were not
                return [(at, bytes(len(data))) for at, data in writes]
        return [self._torn(at, data) for at, data in writes if self._chance.random() < 0.7]

    def _torn(self, at: int, data: bytes) -> tuple[int, bytes]:
        begin, end = sorted(int(edge) for edge in self._chance.integers(0, len(data) + 1, 2))
        return at + begin, data[begin:end]

    def _put(self, path: Path, number: int, left: dict[int, _File | _Directory]) -> None:
        thing = left[number]
        if isinstance(thing, _File):
            path.write_bytes(thing.safe)
            os.utime(path, ns=(thing.mtime_ns, thing.mtime_ns))
            return
        path.mkdir()
        for name, child in thing.safe.items():
            self._put(path / name, child, left)


def _written(content: bytes, writes: list[tuple[int, bytes]]) -> bytes:
    whole = bytearray(content)
    for at, data in writes:
        whole.extend(bytes(max(0, at - len(whole))))
        whole[at : at + len(data)] = data
    return bytes(whole)


def _changed(names: dict[str, int], changes: list[_Change]) -> dict[str, int]:
    after = dict(names)
    for change in changes:
        if change.gone is not None:
            after.pop(change.gone, None)
        if change.points is not None:
            after[change.points[0]] = change.points[1]
    return after
