"""`shoal flock`: devices that train together without a manager or a server."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, Json, TaskArguments
from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.flock.driver import Orders
    from shoal.flock.peer_options import PeerOptions
    from shoal.flock.secret import FlockSecret
    from shoal.runtime.paths import Paths

SECRET_VARIABLE = "SHOAL_FLOCK_SECRET"

#: Only its owner may read and write.
_OWN_MODE = 0o600

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")


@app.callback()
def flock() -> None:
    """Train on a bare network: no manager, no server. Devices that share a secret find each other."""


@app.command()
def secret(
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write it here, readable only by you.", show_default=False),
    ] = None,
) -> None:
    """Create a secret for a new flock. Every device that has it is a peer: copy it to the devices by hand.

    Example:  `shoal flock secret -o flock.key`
    """
    from shoal.cli import screen
    from shoal.flock.secret import FlockSecret

    text = FlockSecret.draw().text
    if out is None:
        print(text)
        return
    try:
        # Never overwrite the secret of another flock: it could not be restored.
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWN_MODE)
    except FileExistsError:
        raise Misuse(f"{out} exists already. Name another file, or remove it if its flock is over") from None
    except OSError as error:
        raise Misuse(f"{out} cannot be written: {error.strerror}") from None
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(f"{text}\n")
    screen.say(f"Wrote {out}. Copy it to every device, and keep it secret: any device that has it is a peer.")


_Task = Annotated[
    str,
    typer.Argument(metavar="TASK", help="A folder, `file.py` or `file.py:Class`. Use the same on every device."),
]

_Rounds = Annotated[int, typer.Option(metavar="N", help="Number of rounds; each merges all models into the next.")]

_SecretFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help=f"File with the secret. Default: {SECRET_VARIABLE}.", show_default=False),
]

_Data = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="This device's own examples. They stay here.", show_default=False),
]

_Peer = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=HOST:PORT", help="Address of a peer, on a network without multicast; repeatable."),
]

_Whenever = Annotated[
    bool, typer.Option("--whenever", help="Merge also while this device is busy, low on battery or in use.")
]

_Anew = Annotated[
    bool, typer.Option("--anew", help="Delete this device's state of an earlier run. Use it on every device.")
]


@app.command()
def train(
    task: _Task,
    devices: Annotated[int, typer.Option(metavar="N", help="Wait for N devices before the first round.")],
    rounds: _Rounds = 20,
    secret_file: _SecretFile = None,
    data: _Data = None,
    examples: Annotated[int, typer.Option(metavar="N", help="Examples per round. 0 uses all.")] = 0,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Examples per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(metavar="X", help="Learning rate.")] = None,
    name: Annotated[str, typer.Option(help="Name of this device.", show_default="its host name")] = "",
    host: Annotated[str, typer.Option(help="Address at which others reach it.", show_default="of its network")] = "",
    port: Annotated[int, typer.Option(help="Port to listen on. 0 takes any free port.")] = 0,
    peer: _Peer = None,
    whenever: _Whenever = False,
    anew: _Anew = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Copy the last model here.")] = None,
    set_: TaskArguments = None,
    home: Home = DEFAULT_HOME,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings.")] = False,
) -> None:
    """Train with the other devices of the flock. Run the same command on each; each ends with the model.

    Example:  `shoal flock train task.py --devices 3 --secret-file flock.key --data /srv/readings`

    If a device dies, the others continue. If it is started again, it rejoins with its last version. Exit code 1 means
    that training ended before the last round.
    """
    import asyncio

    from shoal.data.local import LOCAL_VARIABLE
    from shoal.identity.discovery import check_installed
    from shoal.runtime.own_data import checked
    from shoal.runtime.paths import Paths
    from shoal.trainer.find import find_task

    peers = _peers(peer or [])
    if not peers:
        # Checked before the task is prepared, which takes minutes.
        check_installed(
            "a flock, whose devices find each other by multicast DNS,",
            " (or name the others: --peer NAME=HOST:PORT)",
        )
    key = _secret(secret_file)
    folder = checked(data) if data is not None else None
    if folder is not None:
        # Before the task is prepared: its held-out examples may come from this folder too.
        os.environ[LOCAL_VARIABLE] = str(folder)
    find_task(task)
    numbers = {"batch_size": batch_size, "learning_rate": learning_rate}
    orders = asyncio.run(
        _orders(
            task,
            key=key,
            node=_node(name),
            rounds=rounds,
            devices=devices,
            examples=examples,
            numbers={key: value for key, value in numbers.items() if value is not None},
            arguments=set_ or [],
            places=Paths(home),
            whenever=whenever,
            host=host,
            port=port,
            peers=peers,
        )
    )
    from shoal.flock.driver import save_orders, stored_model
    from shoal.flock.peer_options import PeerOptions

    save_orders(home, orders)
    if anew:
        stored_model(home, orders.plan_sha256).unlink(missing_ok=True)
    _become_peer(PeerOptions(home=home.absolute(), data=folder, out=out, json=json, quiet=quiet))


def _secret(file: Path | None) -> FlockSecret:
    from shoal.flock.secret import FlockSecret

    text = os.environ.get(SECRET_VARIABLE, "")
    if file is not None:
        try:
            text = file.read_text(encoding="ascii")
            _warn_if_readable(file)
        except (OSError, UnicodeDecodeError) as error:
            raise Misuse(f"--secret-file {file}: {error}") from None
    if not text:
        raise Misuse(
            "a flock needs its secret. Make one with `shoal flock secret -o flock.key`, then pass"
            f" --secret-file flock.key (or set {SECRET_VARIABLE})"
        )
    return FlockSecret.parse(text)


def _warn_if_readable(file: Path) -> None:
    """Warn if other users of this device can read the secret."""
    from shoal.cli import screen

    if file.stat().st_mode & ~_OWN_MODE & 0o777:
        screen.say(f"Warning: other users of this device may read {file}. Run `chmod 600 {file}`", "yellow")


def _node(name: str) -> str:
    from shoal.cli.commands.join import default_name
    from shoal.identity.names import check_name

    if name:
        check_name("device", name)
    return name or default_name()


def _peers(given: list[str]) -> dict[str, str]:
    peers = {}
    for text in given:
        name, separator, where = text.partition("=")
        if not separator or ":" not in where:
            raise Misuse(f"--peer is {text!r}; write it as NAME=HOST:PORT, such as attic=192.168.1.20:7100")
        peers[name] = where
    return peers


async def _orders(
    task: str,
    *,
    key: FlockSecret,
    node: str,
    rounds: int,
    devices: int,
    examples: int,
    numbers: dict[str, float],
    arguments: list[str],
    places: Paths,
    whenever: bool,
    host: str,
    port: int,
    peers: dict[str, str],
) -> Orders:
    """Prepare the task on this device, and build its orders."""
    import hashlib
    import json as json_module

    from shoal.cli import screen
    from shoal.cli.commands.train import pairs_of
    from shoal.flock.driver import Orders
    from shoal.flock.pairing.resources import ANY_TIME, USUAL
    from shoal.flock.settings import FlockSettings
    from shoal.identity.discovery import is_installed
    from shoal.plan import Until
    from shoal.store.blobs import BlobStore
    from shoal.trainer.find import find_task
    from shoal.trainer.package import listing_of, make_ready, plan_from, spec_of
    from shoal.wire.encoding import to_json

    settings = FlockSettings(rounds=rounds, devices=devices, examples=examples)
    path, entry = find_task(task)
    typed = {**numbers, "data": "local", "topology": "chain", "pace": "sync", "momentum": 0.0}
    kwargs = pairs_of(arguments, option="--set")
    teller = screen.Teller(screen.err())
    ready = await make_ready(path, entry, out=places.prepared, kwargs=kwargs, plan=typed, on_progress=teller)
    plan = plan_from({**ready.prepared.plan, **typed, "until": Until(epochs=rounds)})
    blobs = BlobStore(places.cache / "blobs")
    blobs.put(ready.bundle)
    blobs.put(Path(ready.prepared.model))
    for manifest in (ready.prepared.train, ready.prepared.test):
        blobs.put(listing_of(manifest))
        for shard in ready.prepared.paths(manifest):
            blobs.put(Path(shard))
    spec = spec_of(ready, plan, job=key.flock)
    # All peers must agree on these. Their data and the first model may differ.
    agreed = [spec.bundle, spec.entry, spec.kwargs_json, to_json(plan), rounds, examples, ready.prepared.layout.sha256]
    return Orders(
        secret=key,
        node=node,
        spec=spec,
        plan_sha256=hashlib.sha256(json_module.dumps(agreed, sort_keys=True).encode()).hexdigest(),
        settings=settings,
        thresholds=ANY_TIME if whenever else USUAL,
        host=host,
        port=port,
        peers=peers,
        multicast=not peers or is_installed(),
    )


def _become_peer(options: PeerOptions) -> None:
    # Replaces the program of this process, which frees the memory of the command line.
    command = [sys.executable, "-m", "shoal.flock.driver", *options.to_argv()]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)
