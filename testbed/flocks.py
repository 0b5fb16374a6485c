"""Homes of mates that form a flock, the command of a mate that does all but train, and how long their rounds took."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from shoal.errors import Misuse
from shoal.flock.driver import Orders, save_orders
from shoal.flock.pairing.resources import ANY_TIME
from shoal.flock.secret import FlockSecret
from shoal.flock.settings import FlockSettings
from shoal.plan import Plan, Until
from shoal.runtime.log_lines import FORMAT_VARIABLE
from shoal.runtime.paths import Paths
from shoal.store.blobs import BlobStore
from shoal.trainer.package import listing_of, spec_of
from testbed.echo_job import echo_job

#: The environment of a mate whose log ``between_versions`` reads.
LOG_AS_READ = {FORMAT_VARIABLE: "json"}


def give_orders(folder: Path, hosts: Mapping[str, str], *, rounds: int, values: int) -> dict[str, Path]:
    """The homes of these mates, each told what to do: name -> the address that it is reached at."""
    job = folder / "job"
    job.mkdir()
    ready = echo_job(job, values=values, batches=1)
    plan = Plan(data="local", topology="chain", momentum=0.0, batch_size=1, until=Until(epochs=rounds))
    secret = FlockSecret.draw()
    spec = spec_of(ready, plan, job=secret.flock)
    homes = {}
    for name, host in hosts.items():
        home = homes[name] = folder / f"home-{name}"
        blobs = BlobStore(Paths(home).cache / "blobs")
        for part in (ready.bundle, Path(ready.prepared.model)):
            blobs.put(part)
        for manifest in (ready.prepared.train, ready.prepared.test):
            blobs.put(listing_of(manifest))
            for shard in ready.prepared.paths(manifest):
                blobs.put(Path(shard))
        orders = Orders(
            secret=secret,
            node=name,
            spec=spec,
            plan_sha256=hashlib.sha256(secret.value).hexdigest(),
            settings=FlockSettings(rounds=rounds, devices=len(hosts)),
            thresholds=ANY_TIME,
            host=host,
        )
        save_orders(home, orders)
    return homes


def command(home: Path) -> list[str]:
    """A mate that does all but train."""
    runs = [sys.executable, "-m", "shoal.flock.driver", "--home", str(home), "--json"]
    return [*runs, "--child-module", "shoal.trainer.echo"]


def between_versions(lines: Iterable[str], *, rounds: int) -> list[float]:
    """Return the seconds from each version to the next, from the logs of all mates."""
    made_s: dict[int, float] = {}
    for line in lines:
        told = json.loads(line) if line.startswith("{") else {}
        if told.get("event") == "version.made":
            number = int(told["reason"].split()[1])
            made_s.setdefault(number, datetime.fromisoformat(told["ts"].replace("Z", "+00:00")).timestamp())
    if sorted(made_s) != list(range(1, rounds + 1)):
        raise Misuse(f"the logs have the versions {sorted(made_s)}, and {rounds} were made")
    return [made_s[number + 1] - made_s[number] for number in range(1, rounds)]
