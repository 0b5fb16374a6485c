"""The console's HTTP routes: the page, its data, its stream, its acts. Decides nothing about a cluster."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from shoal.console.access import SESSION_S, BrowserSession, ConsoleAccess, TooManyAttempts, is_csrf, is_key
from shoal.console.acts import ActDenied, Acts
from shoal.console.assets import Asset, Assets
from shoal.console.feed import Feed, encoded
from shoal.console.guard import Guard
from shoal.console.lanes import SPAN_S
from shoal.console.simulations import SimulationRefused, Simulations
from shoal.console.stream import EventStream
from shoal.errors import ShoalError
from shoal.version import __version__

#: A body that a browser sends; acts and plans are small.
BODY_MAX_BYTES = 64 << 10
#: Below this, packing costs more than it saves.
_GZIP_LEAST_BYTES = 1024
_GZIP_LEVEL = 5

_LOGIN = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Shoal console</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head><body><main><h1>Shoal console</h1>
<form method="post" action="/login"><p><label for="token">The token that <code>shoal console</code> printed</label></p>
<p><input id="token" name="token" type="password" autocomplete="current-password" required autofocus size="40"></p>
<p><button>Open</button></p></form></main></body></html>
"""

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsoleSettings:
    #: What a Host header may say, and the one origin of the page.
    hosts: tuple[str, ...]
    origin: str
    is_tls: bool = False
    #: Whether people log in with a token, and not with a link.
    asks_token: bool = False
    allow: tuple[str, ...] = ()

    @property
    def cookie(self) -> str:
        # A browser takes a __Host- cookie only from exactly this host, over TLS.
        return "__Host-shoal" if self.is_tls else "shoal"


@dataclass(frozen=True, kw_only=True, slots=True)
class Console:
    """The parts that the routes use."""

    feed: Feed
    access: ConsoleAccess
    acts: Acts
    assets: Assets
    simulations: Simulations
    settings: ConsoleSettings
    #: Called when a viewer looks at a job.
    watch: Callable[[str], None]


def make_app(console: Console) -> ASGIApp:
    pages = _Pages(console)
    routes = [
        Route("/", pages.page),
        Route("/a/{sha256}/{name:path}", pages.asset),
        Route("/open", pages.open_link),
        Route("/login", pages.log_in, methods=["POST"]),
        Route("/logout", pages.log_out, methods=["POST"]),
        Route("/api/session", pages.known(pages.session)),
        Route("/api/state", pages.known(pages.state)),
        Route("/api/stream", pages.known(pages.stream)),
        Route("/api/replay", pages.known(pages.replay)),
        Route("/api/lanes", pages.known(pages.lanes)),
        Route("/api/series", pages.known(pages.series)),
        Route("/api/act", pages.known(pages.act), methods=["POST"]),
        Route("/api/simulate", pages.known(pages.simulate), methods=["POST"]),
        Route("/api/simulate/{name}", pages.known(pages.simulated)),
    ]
    settings = console.settings
    return Guard(Starlette(routes=routes), hosts=settings.hosts, origin=settings.origin, is_tls=settings.is_tls)


class _Pages:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._feed = console.feed
        self._settings = console.settings

    # Who gets in ------------------------------------------------------------------------------------------

    def known(self, handler: Callable[[Request, BrowserSession], Awaitable[Response]]) -> Handler:
        """Let only sessions call this handler: by their cookie and their key. Acts also need the session's value."""

        async def guarded(request: Request) -> Response:
            session = self._session(request)
            if session is None or not is_key(session, _told_key(request)):
                return _json(request, {"denied": self._way_in()}, 401)
            if request.method == "POST" and not is_csrf(session, request.headers.get("x-shoal-csrf", "")):
                return _json(request, {"denied": "this page is older than its session: load it again"}, 403)
            return await handler(request, session)

        return guarded

    def _session(self, request: Request) -> BrowserSession | None:
        return self._console.access.session(request.cookies.get(self._settings.cookie, ""))

    def _way_in(self) -> str:
        if self._settings.asks_token:
            return "log in with the token that `shoal console` printed"
        return "open the link that `shoal console` prints: press Enter where it runs for a new one"

    def _let_in(self, cookie: str, session: BrowserSession) -> Response:
        # Browsers do not send the part behind the # to any server. The page reads the key there.
        response = RedirectResponse(f"/#key={session.key}", 303)
        response.set_cookie(
            self._settings.cookie,
            cookie,
            max_age=int(SESSION_S),
            path="/",
            httponly=True,
            samesite="strict",
            secure=self._settings.is_tls,
        )
        return response

    async def open_link(self, request: Request) -> Response:
        opened = self._console.access.open_link(request.query_params.get("k", ""), _address(request))
        if opened is None:
            return PlainTextResponse(f"This link was used, or is too old: {self._way_in()}.\n", 403)
        return self._let_in(*opened)

    async def log_in(self, request: Request) -> Response:
        body = await _body(request)
        token = _field(body or b"", "token")
        try:
            entered = self._console.access.log_in(token, _address(request))
        except TooManyAttempts:
            return PlainTextResponse("Too many attempts: wait a minute.\n", 429, {"retry-after": "60"})
        if entered is None:
            return PlainTextResponse("That is not the token: go back and type the one that was printed.\n", 403)
        return self._let_in(*entered)

    async def log_out(self, request: Request) -> Response:
        session = self._session(request)
        if session is None or not is_csrf(session, request.headers.get("x-shoal-csrf", "")):
            return PlainTextResponse("no session\n", 403)
        self._console.access.end(request.cookies.get(self._settings.cookie, ""))
        return Response(status_code=204)

    # The page -----------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        if self._session(request) is not None:
            return _file(request, self._console.assets.page)
        if self._settings.asks_token:
            return Response(_LOGIN, 401, media_type="text/html; charset=utf-8")
        return PlainTextResponse(f"No session: {self._way_in()}.\n", 401)

    async def asset(self, request: Request) -> Response:
        """Serve a file of the page. It holds no secret: it needs no session, and a browser keeps it for good."""
        asset = self._console.assets.find(request.path_params["sha256"], request.path_params["name"])
        if asset is None:
            return PlainTextResponse("no such file\n", 404)
        response = _file(request, asset)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response

    # What it shows --------------------------------------------------------------------------------------------

    async def session(self, request: Request, session: BrowserSession) -> Response:
        # Not compressed: it holds a secret, and the compressed length would leak some of it.
        allow = list(self._settings.allow) if session.role == "operator" else []
        told = {"role": session.role, "allow": allow, "csrf": session.csrf, "version": __version__}
        return Response(encoded(told), media_type="application/json")

    async def state(self, request: Request, session: BrowserSession) -> Response:
        if not self._feed.state:
            return _json(request, {"denied": "nothing is known of the cluster yet: try again"}, 503)
        response = _json(request, self._feed.state)
        response.headers["etag"] = f'"{self._feed.seq}"'
        return response

    async def stream(self, request: Request, session: BrowserSession) -> Response:
        last = request.headers.get("last-event-id") or request.query_params.get("after", "")
        seen = int(last) if last.isascii() and last.isdecimal() and len(last) < 16 else None
        viewer = self._feed.join(seen)
        if viewer is None:
            return _json(request, {"denied": "too many viewers: close a page"}, 503)
        return EventStream(self._feed, viewer)

    async def replay(self, request: Request, session: BrowserSession) -> Response:
        recording = self._feed.recording
        if recording.from_s is None or recording.to_s is None:
            return _json(request, {"denied": "nothing was recorded yet: try again"}, 503)
        if "at" not in request.query_params:
            told = {"from_s": recording.from_s, "to_s": recording.to_s, "marks": self._feed.marks()}
            return _json(request, told | {"bytes": recording.size_bytes})
        at_s = _number(request, "at", recording.to_s)
        segment = recording.segment_at(at_s)
        if segment is None:
            return _json(request, {"denied": "that is before the recording begins"}, 404)
        # In a thread, so that the stream continues: for a large cluster this takes a while.
        return _json(request, await asyncio.to_thread(segment.state_at, at_s))

    async def lanes(self, request: Request, session: BrowserSession) -> Response:
        from_s, to_s = self._window(request)
        return _json(request, {"lanes": self._feed.lanes.spans(from_s, to_s)})

    async def series(self, request: Request, session: BrowserSession) -> Response:
        job = request.query_params.get("job", "")
        self._console.watch(job)
        return _json(request, self._feed.series.rows(job, *self._window(request)))

    def _window(self, request: Request) -> tuple[float, float]:
        to_s = _number(request, "to", self._feed.recording.to_s or 0.0)
        return _number(request, "from", to_s - SPAN_S), to_s

    # What it does ------------------------------------------------------------------------------------------

    async def act(self, request: Request, session: BrowserSession) -> Response:
        try:
            return _json(request, {"done": await self._console.acts.act(await _json_body(request), session)})
        except ActDenied as denied:
            return _json(request, {"denied": str(denied)}, denied.status)
        except ShoalError as error:
            return _json(request, {"denied": str(error)}, 409)

    async def simulate(self, request: Request, session: BrowserSession) -> Response:
        try:
            return _json(request, {"id": self._console.simulations.begin(await _json_body(request))}, 202)
        except SimulationRefused as refused:
            return _json(request, {"denied": str(refused)}, refused.status)

    async def simulated(self, request: Request, session: BrowserSession) -> Response:
        simulation = self._console.simulations.find(request.path_params["name"])
        if simulation is None:
            return _json(request, {"denied": "no such simulation is kept: begin it again"}, 404)
        return _json(request, simulation.to_plain())


# HTTP, in small ---------------------------------------------------------------------------------------------


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def _json(request: Request, value: Any, status: int = 200) -> Response:
    body, headers = encoded(value), {"vary": "accept-encoding"}
    if len(body) >= _GZIP_LEAST_BYTES and _takes_gzip(request):
        body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        headers["content-encoding"] = "gzip"
    return Response(body, status, headers, media_type="application/json")


def _file(request: Request, asset: Asset) -> Response:
    if _takes_gzip(request):
        headers = {"content-encoding": "gzip", "vary": "accept-encoding"}
        return Response(asset.gzipped, headers=headers, media_type=asset.kind)
    return Response(asset.plain, headers={"vary": "accept-encoding"}, media_type=asset.kind)


async def _body(request: Request) -> bytes | None:
    """Return the complete body, or None if it is larger than any the console accepts."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_MAX_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


async def _json_body(request: Request) -> Any:
    """Return the body as JSON. Return None, which no handler accepts, if it is not JSON, too large, or not declared as
    JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return None
    body = await _body(request)
    try:
        return json.loads(body) if body is not None else None
    except (ValueError, RecursionError):
        return None


def _field(body: bytes, name: str) -> str:
    """Return a field of a form. Parses no more than that: the console has one form with one field."""
    from urllib.parse import parse_qs

    try:
        return parse_qs(body.decode("ascii"), max_num_fields=4).get(name, [""])[0]
    except ValueError:
        return ""


def _number(request: Request, name: str, default: float) -> float:
    try:
        value = float(request.query_params.get(name, default))
    except ValueError:
        return default
    return value if math.isfinite(value) else default


def _told_key(request: Request) -> str:
    """Return the key that a request carries. A browser's EventSource cannot send custom headers."""
    return request.headers.get("x-shoal-key") or request.query_params.get("key", "")


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else "unknown"
