"""A soak from its journal to its end: which cluster is next, and what is printed when all of the time is over."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from testbed.chaos.kit import Site
from testbed.chaos.soak import machine, paces
from testbed.devices import left_of
from testbed.homes import temporary_home
from testbed.namespaces import Network
from testbed.results import say
from testbed.soak import journal as journals
from testbed.soak.journal import Journal
from testbed.soak.leg import Running, Terms
from testbed.soak.pair import PairSite, servers, why_no_servers
from testbed.soak.result import result

DEVICES = 6
#: A job is about as long, or a third of the time with as many managers.
JOB_S, EPOCH_S = 300.0, 42.0
CALM_S = (10.0, 120.0)
#: What is left to do is done.
_DONE_S = 1.0


def next_leg(journal: Journal, hours: float) -> tuple[int, float]:
    """With how many managers it goes on, and for how long: half of the time with each."""
    lacking = {managers: 3600 * hours / 2 - journal.seconds(managers) for managers in (1, 2)}
    return max(lacking.items(), key=lambda item: item[1])


async def soak(path: Path, *, hours: float, every_s: float, seed: int, anew: bool, home: Path | None) -> dict[str, Any]:
    if why_not := why_no_servers():
        raise ShoalError(why_not)
    facts = machine()
    with journals.opened(path, anew=anew) as journal:
        if journal.legs:
            say(f"continued: {path} has {sum(leg.seconds for leg in journal.legs.values()) / 3600:.2f} h")
        while (planned := next_leg(journal, hours))[1] > _DONE_S:
            managers, seconds = planned
            terms = Terms(
                number=journal.next_leg,
                managers=managers,
                seconds=seconds,
                calm_s=min(CALM_S[1], max(CALM_S[0], seconds / 6)),
                every_s=every_s,
                seed=seed,
                epochs=max(1, round(min(JOB_S, 3600 * hours / 6) / EPOCH_S)),
                devices=paces(DEVICES),
                commit=str(facts["commit"]),
            )
            with _home_for(terms, home) as folder:
                await _leg(terms, journal, folder)
            journal.next_leg += 1
        # Commits and load are those of the legs, which may be of other days.
        machine_now = {name: fact for name, fact in facts.items() if name not in ("commit", "load_1m")}
        return {**result(journal), **machine_now, "left_behind": left_of(os.getpid())}


@contextlib.contextmanager
def _home_for(terms: Terms, home: Path | None) -> Iterator[Path]:
    if home is None:
        with temporary_home() as folder:
            yield folder
    else:
        folder = home.absolute() / f"leg-{terms.number}"
        folder.mkdir(parents=True)
        yield folder


async def _leg(terms: Terms, journal: Journal, folder: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        network = stack.enter_context(Network(list(terms.devices)))
        home, jobs = folder / "site", folder / "jobs"
        home.mkdir(mode=0o700)
        jobs.mkdir()
        site: Site
        if terms.managers == 1:
            site = Site(home, devices=terms.devices, network=network, start_s=0.0, lead="devices")
        else:
            served = stack.enter_context(servers(folder))
            site = PairSite(home, devices=terms.devices, network=network, servers=served)
        await stack.enter_async_context(site)
        operator = await stack.enter_async_context(site.operator())
        await Running(site, operator, jobs, terms, journal).run()
