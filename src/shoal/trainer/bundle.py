"""A job's code as one zip: packed the same everywhere, checked before it is unpacked. Runs none of the code."""

from __future__ import annotations

import ast
import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from shoal.errors import Misuse, PeerViolation
from shoal.trainer.find import parse_source
from shoal.trainer.importer import file_of
from shoal.wire.limits import (
    BUNDLE_FILE_MAX_BYTES,
    BUNDLE_FILES_MAX,
    BUNDLE_MAX_BYTES,
    BUNDLE_UNPACKED_MAX_BYTES,
)

_PATH_MAX_CHARS = 512
_CACHE = "__pycache__"
_SKIPPED_DIRECTORIES = frozenset({_CACHE, "node_modules", "site-packages"})
#: How many of the files left out are named. The message only counts the others.
_TOLD_MAX = 6
_EPOCH = (1980, 1, 1, 0, 0, 0)
_READ_BYTES = 64 << 10

_END_BYTES = 22
_END_MARK = b"PK\x05\x06"
_ZIP64_MARK = b"PK\x06\x07"


def pack(path: Path, entry: str, tell: Callable[[str], None] = lambda text: None, *, also: Sequence[str] = ()) -> bytes:
    """Zip a task's directory, or a single file and the neighbours it imports. The same files give the same bytes.

    Reports the files left out, in one line with the reasons. ``also``: names of neighbours that it does not import.
    """
    root = path if path.is_dir() else path.parent
    left_out: dict[Path, str] = {}
    if missing := next((name for name in also if not (root / name).is_file()), None):
        raise Misuse(f"there is no {missing} beside {path.name}: put it into {root}")
    found = _directory_files(path, left_out) if path.is_dir() else _imported_files(path, left_out, also)
    files = sorted(found)
    if left_out:
        tell(_told(left_out, root))
    names = [file.relative_to(root).as_posix() for file in files]
    if (file_name := file_of(entry)) not in names:
        raise Misuse(f"{path} holds no {file_name}, which {entry} names")
    if len(files) > BUNDLE_FILES_MAX:
        raise Misuse(f"{path} holds {len(files)} files, more than {BUNDLE_FILES_MAX}: give the task its own directory")
    packed = io.BytesIO()
    # Stored, not deflated: builds of zlib differ in their output, and the hash of a bundle names it.
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, file in zip(names, files, strict=True):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, file.read_bytes())
            if packed.tell() > BUNDLE_MAX_BYTES:
                raise Misuse(
                    f"{path} is more than {BUNDLE_MAX_BYTES >> 20} MB of code: give the task its own directory"
                )
    return packed.getvalue()


def unpack(data: bytes, directory: Path) -> None:
    """Write a bundle's files below a new or empty directory, or refuse the bundle before anything large happens."""
    _check_end(data)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise Misuse(f"{directory} is not empty: a bundle is unpacked into a directory of its own")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            _check_contents(infos)
            for info in infos:
                _extract(archive, info, directory)
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        struct.error,
    ) as error:
        raise PeerViolation(f"the bundle is damaged: {error}") from None
    except OSError as error:
        raise PeerViolation(f"the bundle does not unpack here: {error}") from None


def _directory_files(directory: Path, left_out: dict[Path, str]) -> Iterator[Path]:
    """Yield the files of a directory that go into a bundle. Adds the others to ``left_out``, with the reason."""
    for parent, directories, files in os.walk(directory):
        here = Path(parent)
        unwanted = {name: why for name in directories if (why := _why_unwanted(here / name))}
        directories[:] = sorted(set(directories) - set(unwanted))
        left_out |= {here / name: why for name, why in unwanted.items() if name != _CACHE}
        for name in files:
            file = here / name
            size_bytes = file.stat().st_size if file.is_file() else 0
            if name.endswith((".pyc", ".pyo")):
                continue
            if name.startswith("."):
                left_out[file] = "hidden"
            elif file.is_symlink() or not file.is_file():
                left_out[file] = "a link" if file.is_symlink() else "not a regular file"
            elif size_bytes <= BUNDLE_FILE_MAX_BYTES:
                yield file
            elif name.endswith(".py"):
                raise Misuse(f"{file} is {size_bytes:,} bytes, more than {BUNDLE_FILE_MAX_BYTES:,}: too large for code")
            else:
                left_out[file] = f"{size_bytes:,} bytes, more than {BUNDLE_FILE_MAX_BYTES:,}"


def _why_unwanted(directory: Path) -> str:
    """Return why a directory does not go into a bundle, or "" if it does."""
    if directory.is_symlink():
        return "a link"
    if directory.name.startswith("."):
        return "hidden"
    is_installed = directory.name in _SKIPPED_DIRECTORIES or (directory / "pyvenv.cfg").exists()
    return "installed packages" if is_installed else ""


def _told(left_out: dict[Path, str], root: Path) -> str:
    # The files that a task could miss come first: a large file matters more than git's directory.
    order = sorted(left_out, key=lambda path: (left_out[path] == "hidden", path))
    names = [f"{path.relative_to(root).as_posix()} ({left_out[path]})" for path in order[:_TOLD_MAX]]
    more = f" and {len(order) - _TOLD_MAX} more" if len(order) > _TOLD_MAX else ""
    return f"left out of the bundle: {', '.join(names)}{more}"


def _imported_files(script: Path, left_out: dict[Path, str], also: Sequence[str]) -> set[Path]:
    """The script, the files that are named and, transitively, the files and packages beside it that they import by
    plain name."""
    found: set[Path] = set()
    waiting = [script, *(script.parent / name for name in also)]
    while waiting and len(found) <= BUNDLE_FILES_MAX:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        for name in _imported_names(file):
            neighbour, package = script.parent / f"{name}.py", script.parent / name
            if neighbour.is_file():
                waiting.append(neighbour)
            elif (package / "__init__.py").is_file():
                inside = set(_directory_files(package, left_out))
                found |= {other for other in inside if other.suffix != ".py"}
                waiting += [other for other in inside if other.suffix == ".py"]
    return found


def _imported_names(file: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(parse_source(file)):
        if isinstance(node, ast.Import):
            names += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module.partition(".")[0])
    return names


def _check_end(data: bytes) -> None:
    """Bound the central directory before zipfile makes an object of each of its entries."""
    if len(data) > BUNDLE_MAX_BYTES:
        raise PeerViolation(f"a bundle of {len(data):,} bytes is refused; the limit is {BUNDLE_MAX_BYTES:,}")
    end = data[-_END_BYTES:]
    # A comment or a zip64 record would let zipfile find another end than the one checked here. `pack` writes neither.
    zip64 = data[-_END_BYTES - 20 : -_END_BYTES].startswith(_ZIP64_MARK)
    if len(end) < _END_BYTES or not end.startswith(_END_MARK) or end[-2:] != b"\0\0" or zip64:
        raise PeerViolation("the bundle is not a plain zip")
    directory_bytes = int.from_bytes(end[12:16], "little")
    if directory_bytes > BUNDLE_FILES_MAX * _PATH_MAX_CHARS:
        raise PeerViolation(f"the bundle lists too many files: it may have at most {BUNDLE_FILES_MAX}")


def _check_contents(infos: list[zipfile.ZipInfo]) -> None:
    if len(infos) > BUNDLE_FILES_MAX:
        raise PeerViolation(f"the bundle lists {len(infos)} files; the limit is {BUNDLE_FILES_MAX}")
    unpacked_bytes = sum(info.file_size for info in infos)
    if unpacked_bytes > BUNDLE_UNPACKED_MAX_BYTES:
        raise PeerViolation(
            f"the bundle unpacks to {unpacked_bytes:,} bytes; the limit is {BUNDLE_UNPACKED_MAX_BYTES:,}"
        )
    seen: set[str] = set()
    for info in infos:
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise PeerViolation(f"the bundle holds {info.filename!r}, which is not a regular file")
        # zipfile puts no limit on the output of other methods, and one of them takes the memory its header asks for.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise PeerViolation(f"the bundle holds {info.filename!r}, which is neither stored nor deflated")
        if info.flag_bits & 1:
            raise PeerViolation(f"the bundle holds {info.filename!r}, which is encrypted")
        if not _is_safe_name(info.filename) or info.orig_filename != info.filename or info.filename in seen:
            raise PeerViolation(f"the bundle holds a file under an unsafe name: {info.orig_filename[:100]!r}")
        seen.add(info.filename)


def _is_safe_name(name: str) -> bool:
    if not 1 <= len(name) <= _PATH_MAX_CHARS or not name.isprintable() or "\\" in name or ":" in name:
        return False
    # as_posix() drops '.', doubled and trailing slashes: a name that it changes is not plain.
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.as_posix() == name and name != "."


def _extract(archive: zipfile.ZipFile, info: zipfile.ZipInfo, directory: Path) -> None:
    target = directory / info.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    left_bytes = info.file_size
    # Exclusive creation follows no link and overwrites nothing.
    with archive.open(info) as source, target.open("xb") as copy:
        while chunk := source.read(_READ_BYTES):
            left_bytes -= len(chunk)
            if left_bytes < 0:
                raise PeerViolation(f"{info.filename!r} is larger than the bundle says")
            copy.write(chunk)
    if left_bytes:
        raise PeerViolation(f"{info.filename!r} is shorter than the bundle says")
