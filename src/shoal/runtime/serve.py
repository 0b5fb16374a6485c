"""``shoal up``: make a cluster or bring one back, open its doors, run until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Misuse, ShoalError
from shoal.roles.membership import Patience
from shoal.runtime.heap import keep_freed_memory
from shoal.runtime.home import Home
from shoal.runtime.leash import end_with_starter
from shoal.runtime.places import Places
from shoal.store.registry import Registry
from shoal.transport.enrol import Enrolled, EnrolmentServer, Newcomer
from shoal.transport.grpc import GrpcServer
from shoal.transport.identity import Authority, Identity
from shoal.transport.join_code import JoinCode, endpoint, new_secret
from shoal.transport.tokens import Denial, Grant

log = logging.getLogger("shoal")

MANAGER = "manager"
OPERATOR = "operator"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The cluster is up."""

    cluster: str
    endpoint: str
    join_line: str
    port: int
    enrol_port: int
    resumed_jobs: tuple[str, ...]


class RegistryTokens:
    """Join secrets in the registry (see ``transport.tokens``)."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def redeem(self, secret: str, *, wanted: str, now_s: float) -> Grant | Denial:
        outcome = self._registry.redeem_token(secret, wanted, now_s)
        if isinstance(outcome, str):
            return Denial(reason=outcome)
        return Grant(node=outcome.node, role=outcome.role)


def open_cluster(places: Places, *, name: str) -> tuple[Authority, Identity]:
    """The cluster's authority and the manager's identity: made once, found again ever after."""
    if (places.manager / "identity.json").exists():
        return Authority.load(places.authority), Identity.load(places.manager)
    authority = Authority.create(places.authority, name)
    identity = authority.identity(node=MANAGER, role="manager", hosts=())
    identity.save(places.manager)
    return authority, identity


async def run_home(
    home: Path,
    *,
    host: str = "0.0.0.0",
    port: int = 7070,
    devices: int = 20,
    token_hours: float = 24.0,
    name: str = "shoal",
    patience: Patience | None = None,
    on_ready: Callable[[Ready], None],
) -> None:
    """Serve until SIGINT or SIGTERM. With port 0 the system chooses both ports."""
    keep_freed_memory()
    places = Places(home)
    with _alone(home):
        authority, identity = open_cluster(places, name=name)
        node = Home(identity, places, patience=patience)
        server = GrpcServer(identity, node)
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        # A device of the manager's name gets another, for a node serves under its name.
        node.registry.upsert_node(node=MANAGER, role="manager", facts_json="{}", state="enrolled", now_s=time.time())
        resumed = node.open_jobs
        await node.start()
        bound = await server.start(host, port)
        enrolment = EnrolmentServer(
            authority,
            identity,
            RegistryTokens(node.registry),
            host,
            port + 1 if port else 0,
            service_port=bound,
            on_enrolled=lambda newcomer: _enrolled(node.registry, newcomer),
        )
        await enrolment.start()
        try:
            reach = _reachable_host(host)
            _give_operator_access(authority, places, endpoint(_local_host(host), bound))
            secret = new_secret()
            now_s = time.time()
            node.registry.add_token(
                secret=secret,
                role="node",
                uses=devices,
                now_s=now_s,
                expires_s=now_s + token_hours * 3600,
                label="shoal up",
            )
            code = JoinCode(host=reach, port=enrolment.port, ca_sha256=authority.fingerprint, secret=secret)
            on_ready(
                Ready(
                    cluster=identity.cluster,
                    endpoint=endpoint(reach, bound),
                    join_line=str(code),
                    port=bound,
                    enrol_port=enrolment.port,
                    resumed_jobs=resumed,
                )
            )
            await stopping.wait()
        finally:
            await enrolment.stop()
            await server.stop()
            await node.stop()


def _enrolled(registry: Registry, newcomer: Newcomer) -> None:
    log.info("%s joined from %s", newcomer.node, newcomer.address)
    registry.upsert_node(
        node=newcomer.node,
        role=newcomer.role,
        facts_json=json.dumps(dict(newcomer.facts)),
        state="enrolled",
        now_s=time.time(),
    )


def _give_operator_access(authority: Authority, places: Places, where: str) -> None:
    """Commands on this machine, by this user, may operate the cluster."""
    try:
        identity = Enrolled.load(places.operator).identity
        if identity.ca_pem != authority.certificate_pem:
            raise Misuse("an operator of another cluster")
    except (Misuse, OSError, ValueError):
        identity = authority.identity(node=OPERATOR, role="operator", hosts=())
    Enrolled(identity=identity, manager_node=MANAGER, manager_endpoint=where).save(places.operator)


def _local_host(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _reachable_host(host: str) -> str:
    """An address other devices can dial: the one this machine would use to reach a network. Nothing is sent."""
    if host not in ("0.0.0.0", "::"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


class _alone:  # noqa: N801 - reads as `with _alone(home)`
    """One manager a home: a second would write the same files."""

    def __init__(self, home: Path) -> None:
        self._path = home / "cluster" / "lock"
        self._fd = -1

    def __enter__(self) -> None:
        import fcntl

        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise Misuse(
                f"a manager is running on {self._path.parent} already: stop it first, or use another --home"
            ) from None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def main() -> int:
    parser = argparse.ArgumentParser(prog="shoal-manager", description="Run a manager; prints one JSON line when up.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--leash", action="store_true", help="end when standard input closes")
    given = parser.parse_args()
    if given.leash:
        end_with_starter()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)

    def on_ready(ready: Ready) -> None:
        print(json.dumps(dataclasses.asdict(ready)), flush=True)

    try:
        asyncio.run(run_home(given.home, host=given.host, port=given.port, devices=given.devices, on_ready=on_ready))
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
