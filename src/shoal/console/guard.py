"""Checks every request's Host and origin, and adds safe headers to every answer.

A page of another site can make a browser send requests here. It cannot read the answers, and because of these checks it
cannot cause an act. A name that suddenly resolves to this machine (DNS rebinding) is not an allowed Host.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

#: Sec-Fetch-Site of a request that a person typed or clicked outside any page, and of one from the console's page.
_OWN_SITES = ("none", "same-origin")


class Guard:
    def __init__(self, app: ASGIApp, *, hosts: Collection[str], origin: str, is_tls: bool) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origin = origin.lower()
        self._more = {"strict-transport-security": "max-age=86400"} if is_tls else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS | self._more)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, safely)

    def _refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return PlainTextResponse("this console answers only under its own address\n", 421)
        site = headers.get("sec-fetch-site")
        if site is not None and site not in _OWN_SITES:
            return PlainTextResponse("this request comes from another site\n", 403)
        origin = headers.get("origin")
        if method not in ("GET", "HEAD") and origin is not None and origin.lower() != self._origin:
            return PlainTextResponse("this request comes from another site\n", 403)
        return None
