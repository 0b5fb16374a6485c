"""Has another process check a job's signatures, whose memory is given back: `cryptography` takes 14 MB of an agent."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from shoal.errors import ShoalError
from shoal.identity.signatures import Checker, SignaturesAsked, SignaturesFound
from shoal.trainer.spawn import command

#: Python and `cryptography` may take long to import from the SD card of a small board.
CHECK_TIMEOUT_S = 120.0

#: A device that is back may prepare all its jobs at the same time: one check's memory is enough for all.
_ONE_AT_A_TIME = ThreadPoolExecutor(1, thread_name_prefix="signatures")


async def checked_apart(check: Callable[[Checker], str]) -> str:
    """Run a check whose signatures another process checks, after those of other jobs. Return what it returns."""
    return await asyncio.get_running_loop().run_in_executor(_ONE_AT_A_TIME, check, verdict_apart)


def verdict_apart(question: SignaturesAsked) -> SignaturesFound:
    """Return the verdict on the signatures. Call it in a thread. Raises ShoalError if they could not be checked."""
    try:
        ran = subprocess.run(
            command("shoal.identity.signatures"),
            input=question.to_json(),
            capture_output=True,
            timeout=CHECK_TIMEOUT_S,
            check=True,
        )
        # The last line, as of a renewal: what this Python loads before any module may print lines of its own.
        return SignaturesFound.from_json((ran.stdout.splitlines() or [b""])[-1])
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
        raise ShoalError(f"the job's signature could not be checked: {why[0]}") from error
    except subprocess.TimeoutExpired as error:
        # The error's own text is the command line, with this device's paths, and the reason travels to the leader.
        why_not = f"no answer within {CHECK_TIMEOUT_S:g} s"
        raise ShoalError(f"the job's signature could not be checked: {why_not}") from error
    except OSError as error:
        raise ShoalError(f"the job's signature could not be checked: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ShoalError(f"the job's signature could not be checked: {error}") from error
