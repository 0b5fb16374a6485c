"""What a check of `shoal doctor` says. A value; knows no check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: ``note``: a fact that is neither right nor wrong, such as a part that is not installed and that few need.
State = Literal["ok", "note", "warn", "fail"]
_RANK: dict[State, int] = {"ok": 0, "note": 0, "warn": 1, "fail": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One check: how it went, what was found, and what to do if something is wrong."""

    check: str
    state: State
    found: str
    do: str = ""

    def __post_init__(self) -> None:
        if _RANK[self.state] and not self.do:
            raise ValueError(f"{self.check}: a finding of state {self.state} says what to do")


def ok(check: str, found: str) -> Finding:
    return Finding(check=check, state="ok", found=found)


def note(check: str, found: str) -> Finding:
    return Finding(check=check, state="note", found=found)


def warn(check: str, found: str, do: str) -> Finding:
    return Finding(check=check, state="warn", found=found, do=do)


def fail(check: str, found: str, do: str) -> Finding:
    return Finding(check=check, state="fail", found=found, do=do)


def worst(findings: Sequence[Finding]) -> State:
    states: list[State] = ["ok", *(finding.state for finding in findings)]
    # Of those that weigh the same, the first: a note is not worse than what is well.
    return max(states, key=_RANK.__getitem__)


def report(findings: Sequence[Finding], **about: str) -> dict[str, Any]:
    """What ``--json`` prints. Its names are kept from release to release."""
    return {
        "state": worst(findings),
        **about,
        "checks": [{"check": f.check, "state": f.state, "found": f.found, "do": f.do} for f in findings],
    }
