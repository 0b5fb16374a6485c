"""What a command's exit code means. The same numbers in every release: scripts rely on them. Knows no command."""

from __future__ import annotations

from enum import IntEnum

from shoal.errors import PeerViolation, Refused, ShoalError, Unreachable


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    MISUSE = 2
    UNREACHABLE = 3
    REFUSED = 4
    UNFIT = 5
    BUG = 70
    INTERRUPTED = 130


MEANING: dict[Exit, str] = {
    Exit.OK: "done",
    Exit.FAILED: "the job failed or was stopped; an exported file differs",
    Exit.MISUSE: "the arguments, or a file they name, cannot be used",
    Exit.UNREACHABLE: "the cluster cannot be reached, or there is none here",
    Exit.REFUSED: "the cluster refused, or who answered is not to be trusted",
    Exit.UNFIT: "a check of `shoal doctor` failed",
    Exit.BUG: "a defect in Shoal",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
}


class Check(IntEnum):
    """What `shoal status --check` ends with, as monitoring programs know it; 3 is ``Exit.UNREACHABLE``."""

    WELL = 0
    #: A job waits, or a device is lost.
    ATTENTION = 1
    #: A job failed.
    TROUBLE = 2


class NoCluster(Unreachable):
    """There is no cluster to talk to from this home directory."""


def exit_code_of(error: BaseException) -> Exit:
    """The code a command ends with when this error ended it."""
    match error:
        case Unreachable():
            return Exit.UNREACHABLE
        case Refused() | PeerViolation():
            return Exit.REFUSED
        # Whatever else Shoal raises on purpose is about what it was given: arguments, a task, a damaged file.
        case ShoalError():
            return Exit.MISUSE
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
        case _:
            return Exit.BUG


def exit_for_state(state: str) -> Exit:
    """The code for the state in which a followed job ended."""
    return Exit.OK if state == "finished" else Exit.FAILED
