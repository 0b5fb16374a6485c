"""An HTTP server for metric families, in the formats that Prometheus asks for."""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from shoal.errors import Misuse
from shoal.exporter.catalogue import Described
from shoal.exporter.families import described
from shoal.exporter.sample import Sample
from shoal.extras import install_command
from shoal.identity import health
from shoal.runtime.metrics_door import MetricsDoor

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("shoal")

#: Scrapers that are served at once; others are told to come later.
SCRAPES_MAX = 8
#: How long a scraper may take to send its request, and to take the answer.
REQUEST_TIMEOUT_S = 10.0

Scrape = Callable[[], Iterable[Sample]]


def check_client_installed() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise Misuse(f"metrics need a package that is not installed: {install_command('metrics')}") from None


def families_of(samples: Iterable[Sample], catalogue: Iterable[Described]) -> Iterator[Metric]:
    """The samples as families of the client library, in the catalogue's order."""
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )

    kinds = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
        "info": InfoMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    catalogue = tuple(catalogue)
    by_family: dict[str, list[Sample]] = {}
    for sample in samples:
        by_family.setdefault(described(sample.family, catalogue).name, []).append(sample)
    for each in catalogue:
        if (found := by_family.get(each.name)) is not None:
            family = kinds[each.type](each.name, each.help, labels=each.labels)
            for sample in found:
                if set(sample.labels) != set(each.labels):
                    raise Misuse(f"{each.name} has the labels {each.labels}, not {tuple(sample.labels)}")
                values = [sample.labels[name] for name in each.labels]
                if each.type == "info":
                    family.add_metric([], sample.labels)
                elif each.type == "histogram":
                    family.add_metric(values, list(sample.buckets), sample.value)
                else:
                    family.add_metric(values, sample.value)
            yield family


class _Collector:
    def __init__(self, scrape: Scrape, catalogue: tuple[Described, ...]) -> None:
        self._scrape, self._catalogue = scrape, catalogue

    def collect(self) -> Iterator[Metric]:
        return families_of(self._scrape(), self._catalogue)


def application(
    scrape: Scrape, catalogue: tuple[Described, ...], *, token: str, trouble: Callable[[], str] = lambda: ""
) -> Callable[..., Iterable[bytes]]:
    """The WSGI application: ``/metrics``, for scrapers that send the token, and for everybody ``/healthz`` and
    ``/readyz``. ``trouble``: why devices would not be served now, or empty."""
    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry = CollectorRegistry(auto_describe=False)
    # Not the library's own registry: its families of this process are nobody's business.
    registry.register(_Collector(scrape, catalogue))
    exposition = make_wsgi_app(registry, disable_compression=True)
    turns = threading.BoundedSemaphore(SCRAPES_MAX)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def plain(status: str, text: str, *headers: tuple[str, str]) -> list[bytes]:
            start_response(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
            return [f"{text}\n".encode()]

        if environ.get("REQUEST_METHOD") != "GET":
            return plain("405 Method Not Allowed", "metrics are read with GET", ("Allow", "GET"))
        path = str(environ.get("PATH_INFO"))
        if path in (health.HEALTH, health.READY):
            found = health.status_of(path, trouble() if path == health.READY else "")
            assert found is not None
            return plain(*found)
        if path != "/metrics":
            return plain("404 Not Found", "metrics are at /metrics")
        sent = str(environ.get("HTTP_AUTHORIZATION", "")).encode("utf-8", "replace")
        if token and not hmac.compare_digest(sent, f"Bearer {token}".encode()):
            return plain("401 Unauthorized", "send the bearer token", ("WWW-Authenticate", "Bearer"))
        if not turns.acquire(blocking=False):
            return plain("503 Service Unavailable", "too many scrapes at once", ("Retry-After", "1"))
        try:
            answered: Iterable[bytes] = exposition(environ, start_response)
            return answered
        except Exception as error:
            log.warning("a scrape failed: %s: %s", type(error).__name__, error)
            return plain("500 Internal Server Error", "the scrape failed: the log of the exporter says why")
        finally:
            turns.release()

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # An exporter that starts again gets its port although connections of the one before are still winding down.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Without looking up this machine's name, which can take long.
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: a scraper that disconnects is not worth a log line."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """A line a scrape would be all that the log says."""

    def address_string(self) -> str:
        return str(self.client_address[0])


class MetricsServer:
    """``/metrics`` in threads of its own, from ``start`` to ``stop``. See ``application``."""

    def __init__(
        self,
        door: MetricsDoor,
        scrape: Scrape,
        catalogue: tuple[Described, ...],
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        check_client_installed()
        kind = _ServerV6 if ":" in door.host else _Server
        serve = application(scrape, catalogue, token=door.token, trouble=trouble)
        try:
            self._server = make_server(door.host, door.port, serve, server_class=kind, handler_class=_Quiet)
        except (OSError, OverflowError) as error:
            raise Misuse(
                f"metrics cannot be served at {door.host}:{door.port} ({error}): choose another port"
            ) from None
        self.door = MetricsDoor(host=door.host, port=self._server.server_port, token=door.token)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown()
            self._server.server_close()
        self._thread.join(REQUEST_TIMEOUT_S)
