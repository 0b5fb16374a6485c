"""The checks of every request for the tab's page (its Host and its origin), and the security headers of every answer.

It is the only page of Shoal that may run WebAssembly. It may only load from and connect to its own listener. Pages of
other sites are refused, unless the operator named their origin.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: A request that a person typed or scanned, and one of our own page.
_OWN_SITES = ("none", "same-origin")
#: A link that a person opens in a mail or a chat comes from another site, and asks for the page itself.
_OPENS_PAGE = ("navigate", "document")
#: A page of another site shows ours in a frame. Its browser checks the site against `frame-ancestors`.
_FRAMES_PAGE = ("navigate", "iframe")


def headers_of(origin: str, others: Collection[str] = ()) -> dict[str, str]:
    """Return the headers of every answer. ``others``: sites that may show the page in a frame."""
    sockets = "ws" + origin.removeprefix("http")
    framers = " ".join(sorted(others)) or "'none'"
    policy = (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; img-src 'self';"
        " manifest-src 'self';"
        f" connect-src 'self' {sockets}; form-action 'none';"
        f" frame-ancestors {framers}; base-uri 'none'"
    )
    more = {"strict-transport-security": "max-age=86400"} if origin.startswith("https:") else {}
    # This header cannot list sites.
    more |= {} if others else {"x-frame-options": "DENY"}
    return more | {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        # The two that let a tab train with more than one thread.
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-embedder-policy": "require-corp",
        "cross-origin-resource-policy": "cross-origin" if others else "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
    }


class PageGuard:
    def __init__(self, app: ASGIApp, *, hosts: Collection[str], origin: str, others: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origin = origin.lower()
        self._others = frozenset(other.lower() for other in others)
        self._headers = headers_of(origin, self._others)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            if self._is_ours(Headers(scope=scope)):
                await self._app(scope, receive, send)
            else:
                await receive()
                # Before it is accepted: the browser of another site's page hears a refused request.
                await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            return
        caller = _origin_in(Headers(scope=scope))

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers.setdefault("cache-control", "no-store")
                if self._others:
                    headers.add_vary_header("origin")
                if caller in self._others:
                    # A browser shows the answer to this page, and sends it no cookie.
                    headers["access-control-allow-origin"] = caller
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, safely)

    def _is_ours(self, headers: Headers) -> bool:
        """A WebSocket is not held to its own origin by browsers: the server has to."""
        return self._knows(headers) and self._admits(_origin_in(headers))

    def _admits(self, origin: str) -> bool:
        return origin == self._origin or origin in self._others

    def _knows(self, headers: Headers) -> bool:
        hosts = headers.getlist("host")
        return len(hosts) == 1 and hosts[0].lower() in self._hosts

    def _refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        if not self._knows(headers):
            return PlainTextResponse("this server only answers requests to its own address\n", 421)
        caller, site = _origin_in(headers), headers.get("sec-fetch-site")
        wants = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
        opens = method == "GET" and (wants == _OPENS_PAGE or (bool(self._others) and wants == _FRAMES_PAGE))
        if site is not None and site not in _OWN_SITES and caller not in self._others and not opens:
            return _foreign()
        return _foreign() if method not in ("GET", "HEAD") and not self._admits(caller) else None


def _origin_in(headers: Headers) -> str:
    """Return the origin of the page that asks, or an empty text if it names none or several."""
    origins = headers.getlist("origin")
    return origins[0].lower() if len(origins) == 1 else ""


def _foreign() -> PlainTextResponse:
    return PlainTextResponse("this request comes from another site\n", 403)
