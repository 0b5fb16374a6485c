"""What those who mean harm can do to real processes: every attack that is known, and whether the harm happened.

A stranger has no certificate; a member has a node's; a task is code that a device runs; a mate has a flock's secret; a
leader lies to devices that seal their updates; and there is what Shoal is installed from. Each attack starts all that
it needs, and leaves nothing running. It is *held* only if the harm did not happen, *harmed* if it did, and *not tried*
if neither was seen: it could not be set up, or its time was over. The exit status is 0 only if all were held.

    python -m benchmarks.attacks [--quick] [--only NAME ...] [--list] --json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.attacks import mate, member, stranger, supply, task
from testbed.attacks.kit import Attack, NotTried, Outcome
from testbed.attacks.leader import STAGED, threaded
from testbed.attacks.leader_driven import DRIVEN, second_model
from testbed.attacks.leader_real import split_sets_8
from testbed.results import finish, say

#: One attack that takes longer than this has failed to show anything.
LIMIT_S = 150.0

#: How many run beside each other, of those that do not measure times.
AT_ONCE = 3

ATTACKS: tuple[Attack, ...] = (
    Attack(name="huge_update_async", finding=1, run=member.huge_update_async),
    Attack(name="huge_update_sync", finding=1, run=member.huge_update_sync),
    Attack(name="huge_update_buffered", finding=1, run=member.huge_update_buffered),
    Attack(name="huge_first_update", finding=1, run=member.huge_first_update),
    Attack(name="over_a_cliff", finding=1, run=member.over_a_cliff),
    Attack(name="into_a_void", finding=1, run=member.into_a_void),
    Attack(name="promised_checkpoint", finding=2, run=member.promised_checkpoint),
    Attack(name="promised_update", finding=2, run=member.promised_update),
    Attack(name="trickled_update", finding=2, run=member.trickled_update),
    Attack(name="silent_connections", finding=3, run=stranger.silent_connections, alone=True),
    Attack(name="shrunk_memory", finding=4, run=task.shrunk_memory),
    Attack(name="root_task", finding=5, run=task.root_task),
    Attack(name="hoarded_memory", finding=6, run=task.hoarded_memory),
    Attack(name="replaced_key", finding=7, run=member.replaced_key),
    Attack(name="label_lie", finding=8, run=member.label_lie),
    Attack(name="gzip_bomb", finding=9, run=member.gzip_bomb),
    Attack(name="gzip_bomb_on_the_floor", finding=9, run=supply.gzip_bomb_on_the_floor),
    Attack(name="full_enrolment_door", finding=10, run=stranger.full_enrolment_door, alone=True),
    Attack(name="renew_flood", finding=11, run=member.renew_flood, alone=True),
    Attack(name="fetch_flood", finding=11, run=member.fetch_flood, alone=True),
    Attack(name="operate_flood", finding=11, run=member.operate_flood, alone=True),
    Attack(name="heavy_mate", finding=12, run=mate.heavy_mate),
    Attack(name="endless_mates", finding=12, run=mate.endless_mates),
    Attack(name="infinite_mate", finding=12, run=mate.infinite_mate),
    Attack(name="not_a_model", finding=12, run=mate.not_a_model),
    Attack(name="pried_shards", finding=13, run=task.pried_shards),
    Attack(name="foreign_blobs", finding=14, run=member.foreign_blobs),
    Attack(name="tampered_package", finding=15, run=supply.tampered_package),
    Attack(name="failed_joins_in_the_log", finding=16, run=stranger.failed_joins_in_the_log),
    Attack(name="one_certificate_twice", finding=17, run=member.one_certificate_twice),
    Attack(name="split_sets_8", finding=18, run=split_sets_8),
    *(Attack(name=each.__name__, finding=18, run=threaded(each)) for each in (*STAGED, *DRIVEN)),
    Attack(name="second_model", finding=18, run=second_model),
)


async def judged(attack: Attack, *, scale: float) -> Outcome:
    """Attack, and say what happened. An attack that itself fails shows nothing: it was not tried."""
    began_s = time.monotonic()
    # Where every user can go: a trainer that is nobody's must reach what it may.
    with tempfile.TemporaryDirectory(prefix="shoal-attack-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            async with asyncio.timeout(LIMIT_S):
                outcome = await attack.run(folder, scale)
        except NotTried as why:
            outcome = Outcome(False, str(why)[:600], tried=False)
        except TimeoutError as error:
            outcome = Outcome(False, f"its time was over: {str(error)[:400] or f'{LIMIT_S:g} s'}", tried=False)
        except Exception as error:
            why_not = f"the attack itself failed: {type(error).__name__}: {str(error)[:400]}"
            outcome = Outcome(False, why_not, tried=False)
    say(f"{attack.name}: {outcome.word} after {time.monotonic() - began_s:.0f} s: {outcome.told}")
    return outcome


async def all_of(attacks: Sequence[Attack], *, scale: float) -> dict[str, Outcome]:
    """Those that measure times one after the other; the rest beside each other, which they have to stand."""
    outcomes: dict[str, Outcome] = {}
    room = asyncio.Semaphore(AT_ONCE)

    async def beside(attack: Attack) -> None:
        async with room:
            outcomes[attack.name] = await judged(attack, scale=scale)

    await asyncio.gather(*(beside(attack) for attack in attacks if not attack.alone))
    for attack in attacks:
        if attack.alone:
            gc.collect()
            outcomes[attack.name] = await judged(attack, scale=scale)
    return {attack.name: outcomes[attack.name] for attack in attacks}


def told(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    words = [outcome.word for outcome in outcomes.values()]
    return {
        "attacks": len(outcomes),
        "held": words.count("held"),
        "harmed": words.count("harmed"),
        "not_tried": words.count("not tried"),
        "details": {name: f"{outcome.word}: {outcome.told}" for name, outcome in outcomes.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="watch each for seconds: all within five minutes")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this one; may be said again")
    parser.add_argument("--list", action="store_true", help="name all attacks, and who does what")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object (it always is)")
    given = parser.parse_args()
    if given.list:
        for attack in ATTACKS:
            print(f"{attack.finding:2} {attack.name}: {attack.about}")
        return 0
    if unknown := set(given.only) - {attack.name for attack in ATTACKS}:
        parser.error(f"there is no attack {', '.join(sorted(unknown))}: see --list")
    chosen = [attack for attack in ATTACKS if not given.only or attack.name in given.only]
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    began_s = time.monotonic()
    outcomes = asyncio.run(all_of(chosen, scale=1.0 if given.quick else 5.0))
    with contextlib.suppress(BrokenPipeError):
        finish({**told(outcomes), "seconds": time.monotonic() - began_s})
    return 0 if all(outcome.word == "held" for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
