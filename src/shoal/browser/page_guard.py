"""The checks of every request for the tab's page (its Host and its origin), and the security headers of every answer.

It is the only page of Shoal that may run WebAssembly. It may only load from and connect to its own listener.
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


def headers_of(origin: str) -> dict[str, str]:
    sockets = "ws" + origin.removeprefix("http")
    policy = (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; img-src 'self';"
        f" connect-src 'self' {sockets}; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    )
    more = {"strict-transport-security": "max-age=86400"} if origin.startswith("https:") else {}
    return more | {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        # The two that let a tab train with more than one thread.
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-embedder-policy": "require-corp",
        "cross-origin-resource-policy": "same-origin",
        "x-frame-options": "DENY",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
    }


class PageGuard:
    def __init__(self, app: ASGIApp, *, hosts: Collection[str], origin: str) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origin = origin.lower()
        self._headers = headers_of(origin)

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

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, safely)

    def _is_ours(self, headers: Headers) -> bool:
        """A WebSocket is not held to its own origin by browsers: the server has to."""
        origins = headers.getlist("origin")
        return self._knows(headers) and len(origins) == 1 and origins[0].lower() == self._origin

    def _knows(self, headers: Headers) -> bool:
        hosts = headers.getlist("host")
        return len(hosts) == 1 and hosts[0].lower() in self._hosts

    def _refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        if not self._knows(headers):
            return PlainTextResponse("this server only answers requests to its own address\n", 421)
        site = headers.get("sec-fetch-site")
        opens = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == _OPENS_PAGE and method == "GET"
        if site is not None and site not in _OWN_SITES and not opens:
            return PlainTextResponse("this request comes from another site\n", 403)
        origin = headers.get("origin")
        if method not in ("GET", "HEAD") and (origin is None or origin.lower() != self._origin):
            return PlainTextResponse("this request comes from another site\n", 403)
        return None
