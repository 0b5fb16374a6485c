"""What all private jobs together have learned of this device's person, and how much its owner allows.

Each job keeps its own account (``privacy_ledger``). Here they are added up: several jobs together leak about one person
at most the sum of their epsilons, with the sum of their deltas, however they were interleaved (basic composition; Dwork
and Roth 2014, theorem 3.16). That is a loose bound for many jobs, and holds for every kind of noise."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import Misuse, ShoalError
from shoal.learning.privacy import PARTICIPATIONS_MAX
from shoal.store.files import make_directory, write_atomically

PRIVACY_FOLDER = "privacy"

#: Beside the accounts; a job's id has no dot in front.
_LIMIT_FILE = ".limit.json"

#: A file of ours is smaller: a participation takes some twenty characters.
_READ_MAX_BYTES = 64 * PARTICIPATIONS_MAX


@dataclass(frozen=True, slots=True)
class PrivacyAccount:
    """The account of one job: how often this device took part, and the budget that it used."""

    job: str
    participations: int
    epsilon: float
    delta: float


def accounts(folder: Path) -> list[PrivacyAccount]:
    """Return the account of every private job of this device. Raises ShoalError if one cannot be read."""
    return [_account(path) for path in sorted((folder / PRIVACY_FOLDER).glob("[!.]*.json"))]


def spent_elsewhere(folder: Path, job: str) -> float:
    """The epsilon that all other jobs have spent."""
    return sum(account.epsilon for account in accounts(folder) if account.job != job)


def limit_of(folder: Path) -> float:
    """The epsilon that the device's owner allows over all jobs; infinite: nothing was said."""
    path = folder / PRIVACY_FOLDER / _LIMIT_FILE
    try:
        return checked_limit(float(read_account(path)["epsilon"]))
    except FileNotFoundError:
        return math.inf
    except (OSError, ValueError, LookupError, TypeError, RecursionError, Misuse) as error:
        raise ShoalError(
            f"the device's limit of privacy, {path}, cannot be read ({error}): it takes no part. Say the limit again:"
            " shoal join --max-epsilon E"
        ) from error


def remember_limit(folder: Path, epsilon: float) -> None:
    """Limit what this device spends over all jobs, from now on and at every later start."""
    text = json.dumps({"epsilon": checked_limit(epsilon)})
    make_directory(folder / PRIVACY_FOLDER)
    write_atomically(folder / PRIVACY_FOLDER / _LIMIT_FILE, lambda file: file.write(text.encode()))


def checked_limit(epsilon: float) -> float:
    if not 0 < epsilon < math.inf:
        raise Misuse(f"--max-epsilon is a number above 0, such as 8, not {epsilon:g}")
    return epsilon


def _account(path: Path) -> PrivacyAccount:
    try:
        kept = read_account(path)
        account = PrivacyAccount(
            str(kept["job"]), len(kept["participations"]), float(kept["epsilon"]), float(kept["delta"])
        )
        if not (0 <= account.epsilon < math.inf and 0 <= account.delta <= 1):
            raise ValueError("it has impossible numbers")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ShoalError(
            f"the device's account of a private job, {path}, cannot be added to the others ({error!r:.200}). Its owner"
            " may restore the file from a backup"
        ) from error
    return account


def read_account(path: Path) -> dict[str, Any]:
    """Return the content of a file of this folder. Raises ValueError or OSError if it cannot be read."""
    with path.open("rb") as file:
        raw = file.read(_READ_MAX_BYTES + 1)
    if len(raw) > _READ_MAX_BYTES:
        raise ValueError("it is too long")
    kept: dict[str, Any] = json.loads(raw)
    return kept
