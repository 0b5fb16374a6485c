"""`shoal offload`: which products of a model are worth sending away, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.options import Json
from shoal.errors import Misuse

if TYPE_CHECKING:
    from rich.table import Table

    from shoal.offload.cost import Home
    from shoal.offload.products import Advert
    from shoal.offload.torch.explain import Explained

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)

_GIGA = 1e9


@app.callback()
def offload() -> None:
    """Let executors that need not be trusted multiply for a model (`shoal.offload` in Python)."""


@app.command()
def explain(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A file or folder with a task, or a file with a function model().")
    ],
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Examples in one step.")] = 256,
    example: Annotated[
        str | None,
        typer.Option("--input", metavar="AxBxC", help="One example's shape, instead of real ones.", show_default=False),
    ] = None,
    privacy: Annotated[str, typer.Option(metavar="MODE", help="none, shuffle or mask.")] = "mask",
    verify: Annotated[str, typer.Option(metavar="MODE", help="freivalds, replicate or none.")] = "freivalds",
    pool: Annotated[
        list[str] | None,
        typer.Option(metavar="HOME", help="Ask this pool what it can; may be repeated.", show_default=False),
    ] = None,
    executors: Annotated[int, typer.Option(metavar="N", min=1, help="Without a pool: assume N executors.")] = 8,
    gmacs: Annotated[
        float | None,
        typer.Option(
            metavar="G",
            help="Billion multiply-adds a second of each; without it, as fast as this device.",
            show_default=False,
        ),
    ] = None,
    mbps: Annotated[float, typer.Option(metavar="MBPS", help="This device's link, million bits a second.")] = 1000.0,
    latency_ms: Annotated[float, typer.Option(metavar="MS", help="There and back, with nothing to do.")] = 2.0,
    json: Json = False,
) -> None:
    """Explain, layer by layer and pass by pass, what would be sent away, and why.

    This device is measured for a second. Example:  `shoal offload explain examples/mnist --batch 1024 --mbps 100`
    """
    from shoal.cli import screen
    from shoal.offload.cost import check_modes
    from shoal.offload.torch.explain import asked_by, read, weighed
    from shoal.offload.torch.measure import measured_home

    check_modes(privacy, verify)
    asked = asked_by(*read(model, rows=batch, example=_shape(example)))
    home = measured_home()
    if pool:
        advert = _asked(pool)
    else:
        advert = _assumed(home, executors=executors, gmacs=gmacs, mbps=mbps, latency_ms=latency_ms)
    explained = weighed(asked, home=home, pool=advert, privacy=privacy, verify=verify)  # type: ignore[arg-type]
    if json:
        screen.print_json(_plain(explained, home, advert, batch=batch, privacy=privacy, verify=verify))
        return
    terminal = screen.out()
    for line in _lines(home, advert, assumed=not pool):
        terminal.print(line, style="dim")
    terminal.print(_table(explained))
    terminal.print(
        f"A step of {batch} examples: {_ms(explained.home_s)} of products here, {_ms(explained.best_s)} with the pool: "
        f"{explained.speedup:.2f} times as fast."
    )


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise Misuse(f"--input {text!r} is not a shape: write numbers with an x between them, such as 1x28x28")
    return tuple(int(side) for side in sides)


def _assumed(home: Home, *, executors: int, gmacs: float | None, mbps: float, latency_ms: float) -> Advert:
    from shoal.offload.cost import MASK_POOLS, link_rate
    from shoal.offload.products import Advert

    each = gmacs * _GIGA if gmacs is not None else 1 / home.operation_s
    if each <= 0 or mbps <= 0 or latency_ms < 0:
        raise Misuse("--gmacs and --mbps are more than 0, --latency-ms is not less than 0")
    return Advert(
        executors=executors,
        operations_per_s=executors * each,
        bytes_per_s=link_rate(mbps, home),
        latency_s=latency_ms / 1000,
        pools=MASK_POOLS,
    )


def _asked(pools: list[str]) -> Advert:
    from shoal.offload.runtime.borrowed import Borrowed
    from shoal.offload.torch.measure import measured_advert

    with Borrowed(pools, privacy="none", verify="none") as borrowed:
        advert = measured_advert(borrowed, borrowed)
    if advert is None:
        raise Misuse(f"{', '.join(pools)} has no executor yet: let devices join it with `shoal join`")
    return advert


def _lines(home: Home, pool: Advert, *, assumed: bool) -> list[str]:
    whose = "a pool that is assumed" if assumed else "the pool"
    return [
        f"this device: {1 / home.operation_s / _GIGA:.1f} billion multiply-adds a second",
        f"{whose}: {pool.executors} executors, {pool.operations_per_s / _GIGA:.1f} billion together, "
        f"{pool.bytes_per_s * 8 / 1e6:,.0f} Mb/s, {_ms(pool.latency_s)} there and back",
    ]


def _table(explained: Explained) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from shoal.cli.render.format import clean

    table = Table(box=SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    for name in ("layer", "pass", "product", "where", "why"):
        table.add_column(name, no_wrap=name != "why", overflow="fold")
    for each in explained.decisions:
        where = Text("sent", style="green") if each.verdict.sends else Text("at home")
        table.add_row(Text(clean(each.layer)), each.step, str(each.shape), where, Text(each.verdict.reason))
    return table


def _plain(explained: Explained, home: Home, pool: Advert, *, batch: int, privacy: str, verify: str) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "batch": batch,
        "privacy": privacy,
        "verify": verify,
        "home": asdict(home),
        "pool": asdict(pool),
        "home_s": explained.home_s,
        "best_s": explained.best_s,
        "speedup": explained.speedup,
        "products": [
            {
                "layer": each.layer,
                "pass": each.step,
                **asdict(each.shape),
                "sends": each.verdict.sends,
                "reason": each.verdict.reason,
                "home_s": each.verdict.home_s,
                "away_s": each.verdict.away_s,
            }
            for each in explained.decisions
        ],
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
