"""The listener for tabs: a page, a way to join, and streams of frames over WebSockets, behind ``net.base``.

Frames, limits and access are those of gRPC's listener (``net.grpc``). Only the proof of identity differs (``proof``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from shoal.browser.page_files import PageFile, page_files
from shoal.browser.page_guard import PageGuard
from shoal.browser.proof import ANSWER_MAX_BYTES, Joining, TabProof, Visitor, new_challenge, proven
from shoal.errors import PeerViolation, Refused, ShoalError
from shoal.identity.enrolment import Newcomer
from shoal.identity.identity import Authority, Identity
from shoal.identity.names import RemoteIdentity, is_name
from shoal.identity.tokens import Denial
from shoal.net.access import Access, ShutOut
from shoal.net.base import BROKE_CONTRACT, Service
from shoal.net.session import FrameSession
from shoal.net.shared_budget import SharedBudget
from shoal.runtime.member_register import MemberRegister
from shoal.runtime.tab_door import TabDoorOptions
from shoal.runtime.tab_offers import TabOffer
from shoal.web_server import listen, web_config
from shoal.wire.frames import chunk_frame, envelope_frame, read_opening
from shoal.wire.limits import (
    CHUNK_BYTES,
    ENROL_MESSAGE_MAX_BYTES,
    FETCHES_PER_PEER,
    HANDSHAKE_MAX_S,
    MESSAGE_MAX_BYTES,
    REASON_MAX_CHARS,
)
from shoal.wire.messages import Blob, Denied, Lane

log = logging.getLogger("shoal")

#: Connections at one time. A tab has three: control, work, and one to fetch.
CONNECTIONS_MAX = 768
#: Connections of one address before they prove their identity.
STRANGERS_PER_ADDRESS = 16
_PING_S = 20.0
#: What jobs download is read from the disk at most this often, however many visitors ask.
_OFFERS_KEPT_S = 1.0

#: Close codes for the page: it was refused, or broke the contract.
CLOSED_REFUSED, CLOSED_BROKE = 4403, 4400
#: Bytes of a close frame for the reason.
_CLOSE_REASON_BYTES = 120


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the manager's: it ends this server when it has let go of its own."""
        yield


class TabDoor:
    def __init__(
        self,
        options: TabDoorOptions,
        *,
        home: Path,
        authority: Authority,
        identity: Identity,
        service: Service,
        register: MemberRegister,
        on_enrolled: Callable[[Newcomer], None],
        offers: Callable[[], Awaitable[tuple[TabOffer, ...]]],
    ) -> None:
        self._options = options
        self._files = page_files(home)
        self._authority = authority
        self._identity = identity
        self._service = service
        self._register = register
        self._on_enrolled = on_enrolled
        self._offers = offers
        self._offered: tuple[TabOffer, ...] = ()
        self._offered_until_s = 0.0
        self._offering = asyncio.Lock()
        self._access = Access(cluster=identity.cluster, members=register)
        self._commons = SharedBudget()
        self._fetches: Counter[str] = Counter()
        self._strangers: Counter[str] = Counter()
        self._origin = options.origin
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._listening: socket.socket | None = None

    async def start(self) -> str:
        options = self._options
        self._listening = listen(options.listens_on, options.port, option="--browser")
        port = self._listening.getsockname()[1]
        scheme, usual = ("https", 443) if options.is_tls else ("http", 80)
        self._origin = f"{scheme}://{options.host}" + ("" if port == usual else f":{port}")
        self._server = _Server(self._config([self._origin.partition("://")[2]]))
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        return self._origin

    async def stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
        if self._listening is not None:
            self._listening.close()

    def _config(self, hosts: list[str]) -> uvicorn.Config:
        routes: list[Any] = [
            Route("/about", self._tell_about, methods=["POST"]),
            Route("/enrol", self._join, methods=["POST"]),
            WebSocketRoute("/door", self._open),
            Route("/{path:path}", self._file, methods=["GET"]),
        ]
        return web_config(
            PageGuard(Starlette(routes=routes), hosts=hosts, origin=self._origin, others=self._options.origins),
            connections_max=CONNECTIONS_MAX,
            certificate=self._options.certificate,
            key=self._options.key,
            options="--browser-certificate and --browser-key",
            ws={
                "ws": "websockets-sansio",
                # Before it is read: a frame of gRPC's door has the same limit.
                "ws_max_size": MESSAGE_MAX_BYTES,
                # A compressed frame would be unpacked before its size is known.
                "ws_per_message_deflate": False,
                "ws_ping_interval": _PING_S,
                "ws_ping_timeout": _PING_S,
            },
        )

    # The page -------------------------------------------------------------------------------------------------

    async def _file(self, request: Request) -> Response:
        found = self._files.get(request.url.path)
        if found is None:
            return PlainTextResponse("no such file\n", 404)
        return _sent(request, found)

    # Joining --------------------------------------------------------------------------------------------------

    async def _join(self, request: Request) -> Response:
        body = await _body(request)
        if isinstance(body, Response):
            return body
        address = request.client.host if request.client is not None else ""
        try:
            return _told(self._joined(Joining.read(body), address), 200)
        except (PeerViolation, Refused) as error:
            log.warning("%s did not join as a tab: %s", address, error)
            return _told({"refused": str(error)[:REASON_MAX_CHARS]}, 403)

    async def _tell_about(self, request: Request) -> Response:
        """Tell who asks and what for, to those with an invitation and to members. Nothing is spent."""
        body = await _body(request)
        if isinstance(body, Response):
            return body
        try:
            self._check_visitor(Visitor.read(body))
        except (PeerViolation, Refused) as error:
            return _told({"refused": str(error)[:REASON_MAX_CHARS]}, 403)
        options, jobs = self._options, await self._recent_offers()
        about = {"cluster": self._authority.cluster, "operator": options.operator, "purpose": options.purpose}
        return _told({**about, "jobs": [asdict(offer) for offer in jobs]}, 200)

    async def _recent_offers(self) -> tuple[TabOffer, ...]:
        """Return the jobs that tabs may work for, as they were at most a second ago."""
        async with self._offering:
            if time.monotonic() >= self._offered_until_s:
                self._offered = await self._offers()
                self._offered_until_s = time.monotonic() + _OFFERS_KEPT_S
        return self._offered

    def _check_visitor(self, visitor: Visitor) -> None:
        """Raise PeerViolation or Refused, with the reason, if this visitor was not invited."""
        if visitor.certificate_pem:
            peer = visitor.member(ca_pem=self._identity.ca_pem)
            self._register.role_now(peer)
        elif reason := self._register.why_not_invited(visitor.secret, now_s=time.time()):
            raise Refused(reason)

    def _joined(self, joining: Joining, address: str) -> dict[str, str]:
        if not is_name(joining.wanted):
            raise PeerViolation(f"{joining.wanted[:80]!r} cannot be the name of a node")
        # The secret is checked before the request is parsed: strangers do not reach the X.509 parser.
        grant = self._register.redeem(joining.secret, wanted=joining.wanted, now_s=time.time(), is_tab=True)
        if isinstance(grant, Denial):
            raise Refused(grant.reason)
        pem = self._authority.issue(node=grant.node, role=grant.role, csr_pem=joining.csr_pem.encode())
        self._on_enrolled(Newcomer(node=grant.node, role=grant.role, address=address, facts={}, certificate_pem=pem))
        log.info("%s joined as a tab from %s", grant.node, address)
        return {"node": grant.node, "cluster": self._authority.cluster, "certificate_pem": pem.decode("ascii")}

    # Streams --------------------------------------------------------------------------------------------------

    async def _open(self, socket_: WebSocket) -> None:
        address = socket_.client.host if socket_.client is not None else ""
        if self._strangers[address] >= STRANGERS_PER_ADDRESS:
            await socket_.close(1013)
            return
        await socket_.accept()
        try:
            peer, verb = await self._admit(socket_, address)
        except (PeerViolation, TimeoutError) as error:
            reason = error.reason if isinstance(error, PeerViolation) else "no answer to the challenge in time"
            await _close(socket_, CLOSED_REFUSED, reason)
            return
        except WebSocketDisconnect:
            return
        if verb == "Fetch":
            await self._serve_blobs(socket_, peer)
        else:
            await self._serve(socket_, peer, Lane(verb))

    async def _admit(self, socket_: WebSocket, address: str) -> tuple[RemoteIdentity, str]:
        """Return the caller and the verb that it calls, or raise if it may not call it."""
        challenge = new_challenge()
        self._strangers[address] += 1
        try:
            async with asyncio.timeout(HANDSHAKE_MAX_S):
                await socket_.send_text(json.dumps({"challenge": challenge, "origin": self._origin}))
                said = await socket_.receive()
        finally:
            self._strangers[address] -= 1
            if not self._strangers[address]:
                del self._strangers[address]
        text = said.get("text")
        if said["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(1000)
        if text is None or len(text) > ANSWER_MAX_BYTES:
            raise PeerViolation(f"the answer to the challenge must be text of at most {ANSWER_MAX_BYTES} characters")
        answer = TabProof.read(text)
        found = proven(answer, ca_pem=self._identity.ca_pem, origin=self._origin, challenge=challenge)
        peer, verb = replace(found, address=address), answer.verb
        conduct = self._commons.conduct
        conduct.admit(peer.node, time.monotonic())
        await self._access.meet(peer)
        self._access.check_call(peer, verb)
        self._access.check_key(peer, verb)
        await asyncio.sleep(conduct.open(peer.node, verb, time.monotonic()))
        await self._access.let_in(peer, verb)
        self._access.check_call(peer, verb)
        await socket_.send_text(json.dumps({"node": peer.node, "cluster": peer.cluster}))
        return peer, verb

    async def _serve(self, socket_: WebSocket, peer: RemoteIdentity, lane: Lane) -> None:
        session = FrameSession(
            peer=peer,
            lane=lane,
            read=lambda: _frame(socket_),
            write=socket_.send_bytes,
            end=None,
            commons=self._commons,
            hears=self._access.heard(peer, str(lane)),
        )
        reason = await session.run(self._service.listener)
        await _close(socket_, CLOSED_BROKE if reason.startswith(BROKE_CONTRACT) else 1000, reason)

    async def _serve_blobs(self, socket_: WebSocket, peer: RemoteIdentity) -> None:
        """Send blobs one after the other, each requested by its hash."""
        if self._fetches[peer.node] >= FETCHES_PER_PEER:
            await _close(socket_, CLOSED_REFUSED, f"{FETCHES_PER_PEER} fetches at a time, not more")
            return
        self._fetches[peer.node] += 1
        try:
            while (frame := await _frame(socket_)) is not None:
                await self._send_blob(socket_, peer, frame)
        except WebSocketDisconnect:
            pass
        except PeerViolation as error:
            if not isinstance(error, ShutOut):
                verdict = self._commons.conduct.offend(peer.node, error.reason, time.monotonic())
                self._service.turned_away(peer, f"{BROKE_CONTRACT}: {error.reason}{f'; {verdict}' if verdict else ''}")
            await _close(socket_, CLOSED_BROKE, error.reason)
        finally:
            self._fetches[peer.node] -= 1
            if not self._fetches[peer.node]:
                del self._fetches[peer.node]

    async def _send_blob(self, socket_: WebSocket, peer: RemoteIdentity, frame: bytes) -> None:
        message = read_opening(frame, hears=self._access.heard(peer, "Fetch")).message
        if not isinstance(message, Blob):
            raise PeerViolation("a fetch must begin with a Blob, which has its hash", peer=peer.node)
        await asyncio.sleep(self._commons.conduct.open(peer.node, "Fetch", time.monotonic()))
        try:
            # A page may load only from its own origin: a tab cannot use a URL elsewhere.
            path = await self._service.find_blob(peer, replace(message, takes_url=False))
        except PeerViolation:
            raise
        except ShoalError as error:
            await socket_.send_bytes(envelope_frame(Denied(reason=str(error)[:REASON_MAX_CHARS])))
            return
        assert isinstance(path, Path)
        await socket_.send_bytes(envelope_frame(Blob(sha256=message.sha256, size_bytes=path.stat().st_size)))
        with path.open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                self._access.check_call(peer, "Fetch")
                await socket_.send_bytes(chunk_frame(chunk))


async def _frame(socket_: WebSocket) -> bytes | None:
    """Return the next frame, or None if the tab disconnected."""
    said = await socket_.receive()
    if said["type"] == "websocket.disconnect":
        return None
    frame = said.get("bytes")
    if frame is None:
        raise PeerViolation("text was sent where a frame was expected")
    return bytes(frame)


async def _close(socket_: WebSocket, code: int, reason: str) -> None:
    short = reason.encode()[:_CLOSE_REASON_BYTES].decode("utf-8", "ignore")
    # The tab may have disconnected first.
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError):
        await socket_.close(code, short)


def _sent(request: Request, found: PageFile) -> Response:
    headers = {
        "etag": found.etag,
        "cache-control": "public, max-age=31536000, immutable" if found.is_fixed else "no-cache",
        "content-encoding": "gzip",
        "vary": "accept-encoding",
    }
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.gzipped, media_type=found.kind, headers=headers)


async def _body(request: Request) -> bytes | Response:
    """Return what was sent, or the answer to a request that is too large or too slow."""
    body = bytearray()
    try:
        # The limit is for the complete request: a stranger that sends slowly holds its connection no longer.
        async with asyncio.timeout(HANDSHAKE_MAX_S):
            async for part in request.stream():
                body += part
                if len(body) > ENROL_MESSAGE_MAX_BYTES:
                    return _told({"refused": "the request is too large"}, 413)
    except TimeoutError:
        return _told({"refused": "the request took too long"}, 408)
    return bytes(body)


def _told(plain: dict[str, Any], status: int) -> Response:
    return Response(json.dumps(plain).encode(), status, media_type="application/json")
