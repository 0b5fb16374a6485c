"""`shoal plan explain`: where the updates of a job meet, and why; or those of a fleet that is not there yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, JobOrLatest, Json
from shoal.errors import Misuse

if TYPE_CHECKING:
    from pathlib import Path

_FLEET_EXAMPLE = "shoal plan explain --devices 16 --mbps 100 --model-mb 2.9 --train-s 1"


_Devices = Annotated[
    int | None,
    typer.Option(metavar="N", help="Instead of a job: so many devices that are alike.", show_default=False),
]

_Mbps = Annotated[
    float | None,
    typer.Option(metavar="MBPS", help="What each one's link carries, in million bits a second.", show_default=False),
]

_LeaderMbps = Annotated[
    float | None,
    typer.Option(metavar="MBPS", help="The same of the leader's link, if it is another.", show_default=False),
]

_Hubs = Annotated[
    int | None,
    typer.Option(metavar="N", help="So many hubs beside them, which sum up and train nothing.", show_default=False),
]

_HubMbps = Annotated[
    float | None,
    typer.Option(metavar="MBPS", help="What each hub's link carries, if not as the leader's.", show_default=False),
]

_ModelMb = Annotated[
    float | None,
    typer.Option(metavar="MB", help="The size of the model, in MB of a million bytes.", show_default=False),
]

_TrainS = Annotated[
    float | None,
    typer.Option(metavar="S", help="How long a device trains before it sends an update.", show_default=False),
]

_SharedAir = Annotated[
    bool, typer.Option("--shared-air", help="They share the air of one access point; the leader is on a wire.")
]

_Trust = Annotated[
    str | None,
    typer.Option(metavar="TRUST", help="Which updates count, such as robust: what that costs.", show_default=False),
]


def explain(
    job: JobOrLatest = "",
    devices: _Devices = None,
    mbps: _Mbps = None,
    leader_mbps: _LeaderMbps = None,
    hubs: _Hubs = None,
    hub_mbps: _HubMbps = None,
    model_mb: _ModelMb = None,
    train_s: _TrainS = None,
    shared_air: _SharedAir = False,
    trust: _Trust = None,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Explain a job's topology: what there was to choose from, what was chosen and why, and how it goes.

    Example:  `shoal plan explain mnist-3fa2`

    A fleet that is not there yet:  `shoal plan explain --devices 16 --mbps 100 --model-mb 2.9 --train-s 1`
    """
    facts = {"--mbps": mbps, "--model-mb": model_mb, "--train-s": train_s}
    if devices is None:
        given = [
            name
            for name, value in {
                **facts,
                "--leader-mbps": leader_mbps,
                "--hubs": hubs,
                "--hub-mbps": hub_mbps,
                "--trust": trust,
            }.items()
            if value is not None
        ]
        if given or shared_air:
            raise Misuse(f"{(given or ['--shared-air'])[0]} is of a fleet: say how large with --devices N")
        _explain_job(job, home, json=json)
        return
    if job:
        raise Misuse(f"explain job {job}, or a fleet of {devices} devices: one at a time")
    if mbps is None or model_mb is None or train_s is None:
        missing = ", ".join(name for name, value in facts.items() if value is None)
        raise Misuse(f"what a fleet does best depends on {missing} too, such as: {_FLEET_EXAMPLE}")
    if hub_mbps is not None and not hubs:
        raise Misuse("--hub-mbps is the link of a hub: say how many there are with --hubs N")
    _explain_fleet(
        devices,
        mbps=mbps,
        leader_mbps=mbps if leader_mbps is None else leader_mbps,
        hubs=hubs or 0,
        hub_mbps=hub_mbps,
        model_mb=model_mb,
        train_s=train_s,
        shared_air=shared_air,
        trust=trust or "identity",
        json=json,
    )


def _explain_job(job: str, home: Path, *, json: bool) -> None:
    from shoal.cli import screen
    from shoal.cli.connect import ask_job, with_operator
    from shoal.cli.render.explained import job_lines, job_plain

    view, _ = with_operator(home, lambda operator: ask_job(operator, job))
    if json:
        screen.print_json(job_plain(view))
        return
    terminal = screen.out()
    for part in job_lines(view):
        terminal.print(part)


def _explain_fleet(
    devices: int,
    *,
    mbps: float,
    leader_mbps: float,
    hubs: int,
    hub_mbps: float | None,
    model_mb: float,
    train_s: float,
    shared_air: bool,
    trust: str,
    json: bool,
) -> None:
    from shoal.cli import screen
    from shoal.cli.render.explained import sketch_lines, sketch_plain
    from shoal.cli.sketch import Sketch

    sketch = Sketch(
        devices=devices,
        link_bytes_per_s=mbps * 1e6 / 8,
        leader_bytes_per_s=leader_mbps * 1e6 / 8,
        hubs=hubs,
        hub_bytes_per_s=(leader_mbps if hub_mbps is None else hub_mbps) * 1e6 / 8 if hubs else 0.0,
        model_bytes=model_mb * 1e6,
        train_s=train_s,
        shared_air=shared_air,
        trust=trust,
    )
    choice = sketch.choose()
    if json:
        screen.print_json(sketch_plain(sketch, choice))
        return
    terminal = screen.out()
    for part in sketch_lines(sketch, choice):
        terminal.print(part)
