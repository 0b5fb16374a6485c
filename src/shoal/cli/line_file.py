"""A join line from a file or from standard input, where neither a shell's history nor ``ps`` shows it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import Misuse
from shoal.wire.limits import JOIN_LINE_MAX_CHARS

if TYPE_CHECKING:
    from typing import TextIO

#: The name that means standard input.
STANDARD_INPUT = Path("-")

#: Lines before the join line that may be empty or begin with ``#``.
_COMMENTS_MAX = 100


def read_line(file: Path, *, may_be_absent: bool) -> str:
    """The join line in a file. ``may_be_absent``: a missing file gives no line, for a device that joined needs none."""
    if file == STANDARD_INPUT:
        return _first_line(sys.stdin, "standard input")
    try:
        with file.open(encoding="utf-8") as text:
            return _first_line(text, str(file))
    except FileNotFoundError:
        if may_be_absent:
            return ""
        raise Misuse(f"there is no file {file}: write the line that `shoal token create` printed into it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"{file} cannot be read ({error}): give --line-file a text file that this user may read") from None


def remove_line(file: Path) -> str:
    """Remove the file of a line that was used. Why the file is still there, or nothing."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        return f"{file} could not be removed ({error.strerror}): remove it yourself, the secret in it may still be good"
    return ""


def _first_line(text: TextIO, name: str) -> str:
    for _ in range(_COMMENTS_MAX):
        # A line is no longer than this, so a wrong file takes no memory.
        read = text.readline(JOIN_LINE_MAX_CHARS + 2)
        if not read:
            break
        line = read.strip()
        if line and not line.startswith("#"):
            # The whole command may have been copied into the file.
            return line.removeprefix("shoal join ").strip()
    raise Misuse(f"there is no join line in {name}: it is the line that begins with shoal://")
