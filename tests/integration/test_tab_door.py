"""The door for tabs, over real sockets: who comes in, what it may say, and everything that is refused."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kit import run

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
websockets = pytest.importorskip("websockets.asyncio.client")

import base64  # noqa: E402
import http.client  # noqa: E402

from websockets.exceptions import ConnectionClosed, InvalidHandshake  # noqa: E402

from shoal.browser import engine_files  # noqa: E402
from shoal.browser.door import CLOSED_BROKE, CLOSED_REFUSED, CONNECTIONS_MAX, TabDoor  # noqa: E402
from shoal.browser.proof import signed_text  # noqa: E402
from shoal.errors import Misuse, Refused  # noqa: E402
from shoal.identity import certificates  # noqa: E402
from shoal.identity.identity import Authority, Identity  # noqa: E402
from shoal.identity.tokens import Denial  # noqa: E402
from shoal.net.base import BROKE_CONTRACT  # noqa: E402
from shoal.runtime.manager_node import ManagerNode  # noqa: E402
from shoal.runtime.manager_options import ManagerOptions  # noqa: E402
from shoal.runtime.tab_door import TabDoorOptions  # noqa: E402
from shoal.runtime.tab_offers import TabOffer  # noqa: E402
from shoal.wire.frames import envelope_frame, read_opening  # noqa: E402
from shoal.wire.limits import MESSAGE_MAX_BYTES  # noqa: E402
from shoal.wire.messages import (  # noqa: E402
    AskStatus,
    Blob,
    Facts,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    MakeToken,
    Message,
    Progress,
    Ready,
    StopJob,
    Welcome,
)
from testbed.attacks.malice import Malice  # noqa: E402

pytestmark = pytest.mark.timeout(600)

SHA = "0" * 64
#: Attacks that end a stream where their job is led. Here nobody leads it: what follows an update is read past.
UNENDED = ("wrong chunk", "impossible shape")
HELLO = Hello(node="tab", incarnation="a1", facts=Facts(onnx="1", browser="Chromium 156"))


@dataclass
class Site:
    authority: Authority
    home: ManagerNode
    origin: str
    numbers: Any
    #: What operators are told.
    told: list[str]
    door: TabDoor

    def tab(self, name: str = "", role: str = "browser") -> Identity:
        """A member that joined."""
        name = name or f"tab-{next(self.numbers)}"
        made = self.authority.identity(node=name, role=role)
        self.home.registry.upsert_node(node=name, role=role, facts_json="{}", state="enrolled", now_s=time.time())
        self.home.register.refresh(name)
        return made

    @asynccontextmanager
    async def socket(self, *, origin: str = "", host: str = "") -> AsyncIterator[Any]:
        place = self.origin.partition("://")[2]
        headers = {"Host": host} if host else {}
        async with websockets.connect(
            f"ws://{place}/door", origin=origin or self.origin, additional_headers=headers, compression=None,
            max_size=16 << 20, user_agent_header=None,
        ) as socket:  # fmt: skip
            yield socket

    async def prove(self, socket: Any, tab: Identity, verb: str = "Control", **changed: str) -> str:
        told = json.loads(await socket.recv())
        said = {"origin": told["origin"], "verb": verb, "incarnation": "a1", "challenge": told["challenge"]} | changed
        signature = certificates.signature(signed_text(**said), tab.key_pem)
        answer = {
            "certificate_pem": tab.certificate_pem.decode(),
            "signature": base64.b64encode(signature).decode(),
            "verb": verb,
            "incarnation": "a1",
        }
        await socket.send(json.dumps(answer))
        return json.dumps(answer)

    @asynccontextmanager
    async def stream(self, tab: Identity, verb: str = "Control") -> AsyncIterator[Any]:
        async with self.socket() as socket:
            await self.prove(socket, tab, verb)
            assert json.loads(await socket.recv())["node"] == tab.node
            yield socket


@asynccontextmanager
async def site_in(directory: Path, origins: tuple[str, ...] = ()) -> AsyncIterator[Site]:
    authority = Authority.create(directory / "authority", "pond")
    identity = authority.identity(node="manager", role="manager")
    home = ManagerNode(identity, ManagerOptions(home=directory / "home"))
    home.register.sign_with(authority)
    engine = engine_files.folder(directory / "home")
    engine.mkdir(parents=True)
    for name in engine_files.FILES:
        (engine / f"{name}.gz").write_bytes(gzip.compress(b"//"))
    door = TabDoor(
        TabDoorOptions(origin="http://127.0.0.1:0", origins=origins),
        home=directory / "home",
        authority=authority,
        identity=identity,
        service=home,
        register=home.register,
        on_enrolled=lambda new: home.register.record(new.certificate_pem, now_s=time.time()) and None,
        offers=home.offers_to_tabs,
    )
    told: list[str] = []
    home.on_event(lambda event: told.append(event.reason))
    await home.start()
    origin = await door.start()
    home.register.open_to(lambda secret: f"shoal://x/{secret}")
    home.register.link = lambda secret: f"{origin}/#join={secret}"
    try:
        yield Site(authority, home, origin, itertools.count(1), told, door)
    finally:
        await door.stop()
        await home.stop()


async def closing(socket: Any) -> tuple[int, str]:
    """How the other side ends it, whatever it says before."""
    try:
        while True:
            await asyncio.wait_for(socket.recv(), 30)
    except TimeoutError:
        return 0, "it stays open"
    except ConnectionClosed as closed:
        return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd is not None else (1006, "")


async def heard(socket: Any) -> Message:
    return read_opening(await asyncio.wait_for(socket.recv(), 30)).message


def asked(site: Site, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any, bytes]:
    """Status, headers and body of an answer."""
    place = site.origin.partition("://")[2]
    connection = http.client.HTTPConnection(place, timeout=30)
    try:
        connection.request(method, path, body, {"Host": place, **headers})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def posted(site: Site, body: dict[str, str], path: str = "/enrol", **headers: str) -> tuple[int, dict[str, Any]]:
    usual = {"Origin": site.origin} | headers
    status, _, raw = asked(site, "POST", path, json.dumps(body).encode(), **usual)
    return status, json.loads(raw) if raw.startswith(b"{") else {}


def token(site: Site, role: str = "browser") -> str:
    made = site.home.register.new_token(role=role, uses=1, valid_s=600, label="")
    return made.join_line.rpartition("=")[2] if role == "browser" else made.join_line.rpartition("/")[2]


@pytest.mark.gate("tab: its door")
def test_a_tab_joins_once_with_its_token_and_speaks(tmp_path: Path) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site:
            request, secret = certificates.new_request("tab"), token(site)
            body = {"secret": secret, "wanted": "tab", "csr_pem": request.pem.decode()}
            status, told = await asyncio.to_thread(posted, site, body)
            assert (status, told["node"], told["cluster"]) == (200, "tab", "pond")
            status, again = await asyncio.to_thread(posted, site, body)
            assert status == 403
            assert "used up" in again["refused"]
            tab = Identity(node="tab", role="browser", cluster="pond", key_pem=request.key_pem,
                           certificate_pem=told["certificate_pem"].encode(),
                           ca_pem=site.authority.certificate_pem)  # fmt: skip
            async with site.stream(tab) as control, site.stream(tab, "Work"):
                await control.send(envelope_frame(HELLO))
                assert isinstance(await heard(control), Welcome)
                await control.send(envelope_frame(Heartbeat(seq=1)))
                while not isinstance(await heard(control), HeartbeatSeen):
                    pass
            site.home.registry.revoke_node("tab", now_s=time.time(), reason="lost")
            site.home.register.refresh("tab")
            async with site.socket() as socket:
                await site.prove(socket, tab)
                code, reason = await closing(socket)
                assert (code, "revoked" in reason) == (CLOSED_REFUSED, True)

    run(story())


def test_only_the_invited_and_members_hear_what_the_cluster_wants(tmp_path: Path) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site:

            async def told(body: dict[str, str], **headers: str) -> tuple[int, dict[str, Any]]:
                return await asyncio.to_thread(posted, site, body, "/about", **headers)

            request, secret = certificates.new_request("tab"), token(site)
            for _ in range(2):
                # Asking spends nothing.
                status, about = await told({"secret": secret})
                assert (status, about) == (200, {"cluster": "pond", "operator": "", "purpose": "", "jobs": []})
            body = {"secret": secret, "wanted": "tab", "csr_pem": request.pem.decode()}
            _, joined = await asyncio.to_thread(posted, site, body)
            assert (await told({"certificate_pem": joined["certificate_pem"]}))[0] == 200
            agent = site.authority.identity(node="pi", role="node").certificate_pem.decode()
            stranger = Authority.create(tmp_path / "other", "pond").identity(node="tab", role="browser")
            for refused in (
                {"secret": secret},
                {"secret": "0" * 32},
                {"secret": ""},
                {"secret": token(site, "node")},
                {"certificate_pem": agent},
                {"certificate_pem": stranger.certificate_pem.decode()},
                {"certificate_pem": "x"},
                {},
            ):
                status, about = await told(refused)
                assert (status, list(about)) == (403, ["refused"]), refused
            status, _ = await told({"secret": "x" * 40_000})
            assert status == 413
            # Another site's page cannot ask in a visitor's browser.
            assert (await told({"secret": token(site)}, Origin="https://evil.example"))[0] == 403
            site.home.registry.revoke_node("tab", now_s=time.time(), reason="lost")
            site.home.register.refresh("tab")
            status, about = await told({"certificate_pem": joined["certificate_pem"]})
            assert status == 403
            assert "revoked" in about["refused"]

    run(story())


def test_tokens_are_good_at_their_own_door_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site:
            csr = certificates.new_request("tab").pem.decode()
            for secret in (token(site, "node"), token(site, "operator"), "0" * 32, ""):
                body = {"secret": secret, "wanted": "tab", "csr_pem": csr}
                status, _ = await asyncio.to_thread(posted, site, body)
                assert status == 403
            # Nor is a tab's where agents join; and neither try has spent it.
            secret = token(site)
            denied = site.home.register.redeem(secret, wanted="pi", now_s=time.time())
            assert isinstance(denied, Denial)
            assert "makes a browser" in denied.reason
            status, _ = await asyncio.to_thread(posted, site, {"secret": secret, "wanted": "tab", "csr_pem": csr})
            assert status == 200
            for body in ({"secret": "a"}, {"secret": token(site), "wanted": "../x", "csr_pem": csr}):
                status, _ = await asyncio.to_thread(posted, site, body)
                assert status == 403
            status, _ = await asyncio.to_thread(posted, site, {"secret": "x" * 40_000, "wanted": "t", "csr_pem": csr})
            assert status == 413

    run(story())


def test_a_request_to_join_that_drips_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.browser.door.HANDSHAKE_MAX_S", 0.5)

    async def story() -> None:
        async with site_in(tmp_path) as site:
            place = site.origin.partition("://")[2]
            host, port = place.split(":")
            reading, writing = await asyncio.open_connection(host, int(port))
            head = f"POST /enrol HTTP/1.1\r\nHost: {place}\r\nOrigin: {site.origin}\r\nContent-Length: 400\r\n\r\n"
            writing.write(f"{head}{{".encode())
            said = await asyncio.wait_for(reading.readline(), 30)
            assert b" 408 " in said
            writing.close()

    run(story())


def test_silent_connections_of_one_address_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.impatient_http.REQUEST_WITHIN_S", 1.0)

    async def story() -> None:
        async with site_in(tmp_path) as site:
            host, port = site.origin.removeprefix("http://").split(":")
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS_MAX + 50)]
            # One of them begins a second request and never ends it.
            reading, writing = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
            silent.append((reading, writing))
            writing.write(f"GET /none HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            assert b" 404 " in await asyncio.wait_for(reading.readline(), 30)
            writing.write(b"GET / HTTP/1.1\r\n")
            async with asyncio.timeout(30):
                for one, _ in silent:
                    # Each is ended, whatever it had been sent.
                    with contextlib.suppress(ConnectionError):
                        await one.read()
            status, _ = await asyncio.to_thread(posted, site, {"secret": token(site)}, "/about")
            assert status == 200
            for _, other in silent:
                other.close()

    run(story())


def test_the_disk_is_read_once_however_many_ask(tmp_path: Path) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site:
            asked = 0

            async def offers() -> tuple[TabOffer, ...]:
                nonlocal asked
                asked += 1
                return ()

            site.door._offers = offers
            secret = token(site)
            for _ in range(8):
                assert (await asyncio.to_thread(posted, site, {"secret": secret}, "/about"))[0] == 200
            assert 1 <= asked <= 3

    run(story())


def test_a_challenge_answered_before_is_of_no_use(tmp_path: Path) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site:
            tab = site.tab()
            async with site.socket() as first:
                replayed = await site.prove(first, tab)
                await first.recv()
            async with site.socket() as second:
                await second.recv()
                await second.send(replayed)
                assert (await closing(second))[0] == CLOSED_REFUSED
            for changed in ({"origin": "https://evil.example"}, {"incarnation": "b2"}, {"challenge": "x"}):
                async with site.socket() as socket:
                    await site.prove(socket, tab, **changed)
                    code, reason = await closing(socket)
                    assert code == CLOSED_REFUSED
                    assert "not signed" in reason
            for answer in ("hello", "{}", b"\x00", "x" * 9000):
                async with site.socket() as socket:
                    await socket.recv()
                    await socket.send(answer)
                    assert (await closing(socket))[0] == CLOSED_REFUSED

    run(story())


def test_other_hosts_and_other_sites_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site:
            for wrong in ({"origin": "https://evil.example"}, {"origin": "null"}, {"host": "evil.example"}):
                with pytest.raises(InvalidHandshake):
                    async with site.socket(**wrong):
                        pass

            async def page(**headers: str) -> int:
                status, told, _ = await asyncio.to_thread(asked, site, "GET", "/", **headers)
                assert "'wasm-unsafe-eval'" in told["content-security-policy"]
                return int(status)

            assert await page() == 200
            assert await page(Host="evil.example") == 421
            assert await page(**{"Sec-Fetch-Site": "cross-site"}) == 403
            link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
            assert await page(**link) == 200
            body = {"secret": token(site), "wanted": "tab", "csr_pem": ""}
            status, _ = await asyncio.to_thread(posted, site, body, Origin="https://evil.example")
            assert status == 403

    run(story())


APP = "https://app.example"


@pytest.mark.gate("tab: its door")
def test_a_site_that_the_operator_named_comes_in_and_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        script = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "script"}
        frame = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
        for origins in ((), (APP,)):
            async with site_in(tmp_path / str(len(origins)), origins) as site:

                async def page(site: Site = site, **headers: str) -> tuple[int, Any]:
                    status, told, _ = await asyncio.to_thread(asked, site, "GET", "/tab.js", **headers)
                    return int(status), told

                status, told = await page(Origin=APP, **script)
                assert (status, told["access-control-allow-origin"]) == ((200, APP) if origins else (403, None))
                status, told = await page(**frame)
                assert status == (200 if origins else 403)
                assert told["x-frame-options"] == (None if origins else "DENY")
                framers = APP if origins else "'none'"
                assert f"frame-ancestors {framers};" in told["content-security-policy"]
                body = {"secret": token(site)}
                status, about = await asyncio.to_thread(posted, site, body, "/about", Origin=APP)
                assert (status, about.get("cluster")) == ((200, "pond") if origins else (403, None))
                if origins:
                    async with site.socket(origin=APP) as socket:
                        assert json.loads(await socket.recv())["origin"] == site.origin
                # Whoever is not on the list stays out, and so does a page that names no origin.
                for other in ("https://evil.example", "null", "https://app.example.evil.example", "http://app.example"):
                    assert (await page(Origin=other, **script))[0] == 403
                    assert (await asyncio.to_thread(posted, site, body, "/about", Origin=other))[0] == 403
                    with pytest.raises(InvalidHandshake):
                        async with site.socket(origin=other):
                            pass
                status, told = await page(**script)
                assert (status, told["access-control-allow-origin"]) == (403, None)

    run(story())


@pytest.mark.parametrize("role", ["node", "operator", "manager"])
def test_members_of_other_kinds_do_not_come_in(tmp_path: Path, role: str) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site, site.socket() as socket:
            await site.prove(socket, site.tab("other", role))
            code, reason = await closing(socket)
            assert (code, reason) == (CLOSED_REFUSED, f"the listener for tabs does not admit the role {role}")

    run(story())


def test_a_tab_says_what_a_worker_says_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site:
            wrong: list[tuple[str, Message]] = [
                ("Control", AskStatus()),
                ("Control", StopJob(job="j", reason="")),
                ("Control", MakeToken()),
                ("Control", Progress(job="j", term=1, state="training")),
                ("Work", Blob(sha256=SHA)),
                ("Work", AskStatus()),
                ("Fetch", AskStatus()),
                ("Fetch", Ready(job="j")),
                # One that does not say that it is a tab would be made a leader.
                ("Control", Hello(node="tab", incarnation="a1", facts=Facts(onnx="1"))),
            ]
            for verb, message in wrong:
                tab = site.tab()
                async with site.stream(tab, verb) as socket:
                    await socket.send(envelope_frame(message))
                    assert (await closing(socket))[0] == CLOSED_BROKE, (verb, message)
            assert len([line for line in site.told if BROKE_CONTRACT in line]) == len(wrong)
            # A blob of no job of its own is not there.
            async with site.stream(site.tab(), "Fetch") as socket:
                await socket.send(envelope_frame(Blob(sha256=SHA)))
                assert type(await heard(socket)).__name__ == "Denied"
            for verb in ("Operate", "Store", "Renew"):
                async with site.socket() as socket:
                    await site.prove(socket, site.tab(), verb)
                    assert (await closing(socket))[0] == CLOSED_REFUSED

    run(story())


def test_hostile_frames_end_their_stream_and_nothing_else(tmp_path: Path) -> None:
    """A share of the attacks that gRPC's door stands (``benchmarks.hostile_frames``), from many tabs."""

    async def story() -> None:
        async with site_in(tmp_path) as site:
            honest = site.tab("honest")
            async with site.stream(honest) as pulse:
                await pulse.send(envelope_frame(replace(HELLO, node="honest")))
                ended = 0
                attacks = Malice(7, node="liar", job="j", at="manager").attacks()
                for attack in itertools.islice(attacks, 300):
                    async with site.stream(site.tab(), str(attack.lane)) as socket:
                        try:
                            for frame in attack.frames:
                                await socket.send(bytes(frame))
                        except ConnectionClosed:
                            pass
                        if attack.ends and attack.kind not in UNENDED:
                            code, _ = await closing(socket)
                            assert code in (CLOSED_BROKE, 1009, 1006), (attack.kind, code)
                            ended += 1
                assert ended > 100
                for text in ("hello", "x" * (MESSAGE_MAX_BYTES + 1)):
                    async with site.stream(site.tab()) as socket:
                        await socket.send(text)
                        assert (await closing(socket))[0] in (CLOSED_BROKE, 1009)
                async with site.stream(site.tab()) as socket:
                    await socket.send(b"\x00" * (MESSAGE_MAX_BYTES + 1))
                    assert (await closing(socket))[0] == 1009
                await pulse.send(envelope_frame(Heartbeat(seq=1)))
                while not isinstance(await heard(pulse), HeartbeatSeen):
                    pass

    run(story())


@pytest.mark.parametrize(
    ("origin", "files"),
    [
        ("http://192.168.1.10:7075", False),
        ("http://shoal.example:7075", False),
        ("http://0.0.0.0:7075", False),
        ("https://shoal.example:7075", False),
        ("http://127.0.0.1:7075", True),
        ("https://shoal.example/path", True),
        ("ftp://127.0.0.1", False),
        ("shoal.example", False),
        ("http://127.0.0.1:port", False),
    ],
)
def test_plain_http_is_for_loopback_and_tls_for_everywhere_else(tmp_path: Path, origin: str, files: bool) -> None:
    with pytest.raises(Misuse):
        TabDoorOptions(
            origin=origin, certificate=tmp_path / "c" if files else None, key=tmp_path / "k" if files else None
        )
    assert TabDoorOptions(origin="http://127.0.0.1:7075").listens_on == "127.0.0.1"
    tls = TabDoorOptions(origin="https://shoal.example", certificate=tmp_path, key=tmp_path)
    assert (tls.host, tls.port, tls.is_tls) == ("shoal.example", 443, True)


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "https://*.example",
        "http://app.example",
        "https://app.example/",
        "app.example",
        "https://me@app.example",
        "https://@app.example",
        "https://app.example:443",
        "https://app.example:0444",
        "https://app.example:",
        "https://a https:",
        "https://a;sandbox",
        "https://a,b",
        "https://a..b",
        "null",
    ],
)
def test_a_site_of_others_is_named_as_browsers_name_it(origin: str) -> None:
    with pytest.raises(Misuse, match="--browser-origin"):
        TabDoorOptions(origin="http://127.0.0.1:7075", origins=("https://app.example", origin))


def test_no_link_is_made_without_a_door(tmp_path: Path) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site:
            site.home.register.link = None
            with pytest.raises(Refused, match="shoal up --browser"):
                site.home.register.answer(MakeToken(role="browser"), by="operator")

    run(story())
