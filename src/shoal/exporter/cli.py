"""`shoal metrics`: serve the cluster's metrics to Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home
from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.exporter.sample import Sample
    from shoal.runtime.metrics_door import MetricsDoor

app = typer.Typer(invoke_without_command=True, no_args_is_help=False, subcommand_metavar="")

LISTEN = "127.0.0.1:7073"
NODES = 200


@app.callback()
def metrics(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where Prometheus scrapes; port 0: any.")] = LISTEN,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve at 127.0.0.1 and this port.", show_default=False),
    ] = None,
    nodes: Annotated[
        int,
        typer.Option(
            min=1, max=100_000, help="With more devices than this, the 50 in most trouble and node=other for the rest."
        ),
    ] = NODES,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with the bearer token that scrapers send; needed where other machines can connect.",
            show_default=False,
        ),
    ] = None,
    home: Home = DEFAULT_HOME,
) -> None:
    """Serve the cluster's metrics to Prometheus, as an operator of it: on the manager's machine, or on any operator's.

    Example:  `shoal metrics`  then scrape  `http://127.0.0.1:7073/metrics`: see docs/operations/metrics.md
    """
    import asyncio

    from shoal.exporter.serve import check_client_installed
    from shoal.runtime import log_lines
    from shoal.runtime.metrics_door import listen_at

    if port is not None and listen != LISTEN:
        raise Misuse("--listen names the port too: leave out --listen or --port")
    where = listen if port is None else f"127.0.0.1:{port}"
    check_client_installed()
    log_lines.set_up(quiet=False)
    asyncio.run(_serve(home, listen_at(where, token_file=token_file), nodes_max=nodes))


async def _serve(home: Path, door: MetricsDoor, *, nodes_max: int) -> None:
    import asyncio
    import signal

    from shoal.cli.connect import operator_of
    from shoal.exporter.catalogue import CLUSTER
    from shoal.exporter.families import samples_of
    from shoal.exporter.serve import MetricsServer
    from shoal.exporter.source import ANSWER_TIMEOUT_S, ScrapeSource

    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with operator_of(home) as operator:
        source = ScrapeSource(operator, home)

        def scrape() -> Iterable[Sample]:
            asked = asyncio.run_coroutine_threadsafe(source.snapshot(), loop)
            # A scrape waits for one that is under way, then asks itself.
            return samples_of(asked.result(2 * ANSWER_TIMEOUT_S), nodes_max=nodes_max)

        def trouble() -> str:
            return asyncio.run_coroutine_threadsafe(source.trouble(), loop).result(2 * ANSWER_TIMEOUT_S)

        server = MetricsServer(door, scrape, CLUSTER, trouble)
        server.start()
        print(f"Metrics are at {server.door}; Ctrl-C ends this.", flush=True)
        try:
            await stopping.wait()
        finally:
            await asyncio.to_thread(server.stop)
