"""The console over HTTP: who gets in, what an answer carries, who may act, what a slow viewer costs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the console's packages are not installed: pip install '.[console]'")
pytest.importorskip("uvicorn", reason="the console's packages are not installed: pip install '.[console]'")

from browser import PATIENCE_S, Browser
from console_kit import Server, console_server
from statuses import JOB, evaluation, event, job, node, status

from shoal.console.access import SESSION_S, VIEWER
from shoal.console.feed import QUEUE_MAX
from shoal.console.patch import apply
from shoal.console.simulations import parse
from shoal.console.state import JobDetails, key
from shoal.errors import PeerViolation
from shoal.wire.messages import NodeView

STRANGE = "<img src=x onerror=alert(1)>\u202egnp.exe\x1b[31m"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with console_server(tmp_path, allow=("models",)) as running:
        yield running


# Who gets in ----------------------------------------------------------------------------------------------------


def test_a_link_opens_once(server: Server) -> None:
    link = f"/open?k={server.do(server.console.access.new_link)}"
    first = Browser(server.port)
    answer = first.get(link)
    assert answer.status == 303
    assert answer.headers["location"].startswith("/#key=")
    assert first.get("/").status == 200
    again = Browser(server.port).get(link)
    assert again.status == 403
    assert b"too old" in again.body


def test_a_link_lasts_a_minute(server: Server) -> None:
    link = f"/open?k={server.do(server.console.access.new_link)}"
    server.clock.ahead_s = 61
    assert Browser(server.port).get(link).status == 403


def test_a_guess_is_no_link(server: Server) -> None:
    server.do(server.console.access.new_link)
    for guess in ("/open", "/open?k=", "/open?k=aaaa", "/open?k=%00"):
        assert Browser(server.port).get(guess).status == 403


def test_the_cookie_is_for_this_server_alone(server: Server) -> None:
    answer = Browser(server.port).get(f"/open?k={server.do(server.console.access.new_link)}")
    words = {word.strip().lower() for word in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/", f"max-age={int(SESSION_S)}"} <= words


def test_without_a_session_there_is_nothing_to_see(server: Server) -> None:
    server.take(status())
    stranger = Browser(server.port)
    for path in ("/", "/api/session", "/api/state", "/api/stream", "/api/replay", "/api/lanes", "/api/series?job=x"):
        assert stranger.get(path).status == 401, path
    assert stranger.post("/api/act", {"do": "stop", "job": JOB, "reason": "x"}).status == 401
    stranger.cookie = "shoal=guessed"
    assert stranger.get("/api/state").status == 401


def test_a_cookie_without_the_key_of_its_session_gives_nothing(server: Server) -> None:
    """A browser sends the cookie to every port of 127.0.0.1, so that another local server may have it."""
    server.take(status())
    browser, other = server.browser(), server.browser()
    csrf = browser.csrf
    data = ("/api/session", "/api/state", "/api/stream", "/api/replay", "/api/lanes", "/api/series?job=x")
    for guess in ("", "x", other.key):
        thief = Browser(server.port)
        thief.cookie, thief.key = browser.cookie, guess
        for path in data:
            assert thief.get(path).status == 401, path
        act = {"do": "publish", "job": JOB, "reason": "x"}
        assert thief.post("/api/act", act, x_shoal_csrf=csrf).status == 401
        assert thief.post("/api/simulate", {}, x_shoal_csrf=csrf).status == 401
        page = thief.get("/")
        assert page.status == 200
        assert browser.key.encode() not in page.body
    assert browser.get("/api/state").status == 200


def test_a_session_ends_after_half_a_day(server: Server) -> None:
    browser = server.browser()
    server.clock.ahead_s = SESSION_S - 60
    assert browser.get("/api/session").status == 200
    server.clock.ahead_s = SESSION_S + 60
    assert browser.get("/api/session").status == 401


def test_another_name_for_this_machine_is_refused(server: Server) -> None:
    browser = server.browser()
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1", f"127.0.0.1:{server.port + 1}", ""):
        assert browser.get("/api/session", host=host).status == 421, host
    assert browser.get("/api/session", host=f"localhost:{server.port}").status == 200


def test_a_request_from_another_site_is_refused(server: Server) -> None:
    browser = server.browser()
    for site in ("cross-site", "same-site"):
        assert browser.get("/api/session", sec_fetch_site=site).status == 403
    for site in ("same-origin", "none"):
        assert browser.get("/api/session", sec_fetch_site=site).status == 200
    act = {"do": "publish", "job": JOB, "reason": "x"}
    assert browser.post("/api/act", act, x_shoal_csrf=browser.csrf, origin="https://evil.example").status == 403


def test_every_answer_carries_safe_headers(server: Server) -> None:
    browser = server.browser()
    server.take(status())
    answers = [browser.get(path) for path in ("/", "/api/state", "/nothing", "/open?k=x")]
    answers.append(browser.get("/", host="evil.example"))
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


def test_a_token_is_typed_once_and_guesses_are_few(tmp_path: Path) -> None:
    with console_server(tmp_path, asks_token=True) as server:
        token = server.do(lambda: server.console.access.new_token(VIEWER))
        browser = Browser(server.port)
        page = browser.get("/")
        assert page.status == 401
        assert b'action="/login"' in page.body
        form = {"content-type": "application/x-www-form-urlencoded"}
        for _ in range(4):
            assert browser.ask("POST", "/login", b"token=guess", form).status == 403
        assert browser.ask("POST", "/login", f"token={token}".encode(), form).status == 303
        assert browser.get("/api/session").json["role"] == "viewer"
        assert browser.ask("POST", "/login", f"token={token}".encode(), form).status == 429
        server.clock.ahead_s = 61
        assert browser.ask("POST", "/login", f"token={token}".encode(), form).status == 303


# What it shows --------------------------------------------------------------------------------------------------


def test_assets_are_served_by_their_hash_alone(server: Server) -> None:
    browser = server.browser()
    page = browser.get("/").body.decode()
    path = next(part for part in page.split('"') if part.startswith("/a/") and part.endswith("app.js"))
    answer = Browser(server.port).get(path)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]
    sha256 = path.split("/")[2]
    for other in ("/a/0/app.js", f"/a/{sha256}/index.html", f"/a/{sha256}/../app.py", f"/a/{sha256}/%2e%2e/app.py"):
        assert browser.get(other).status == 404, other


def test_the_state_is_told_whole_and_packed(server: Server) -> None:
    browser = server.browser()
    assert browser.get("/api/state").status == 503
    server.take(status(nodes=tuple(node(f"device-{number}") for number in range(50))))
    answer = browser.get("/api/state")
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.packed_bytes < len(answer.body) / 4
    assert answer.headers["etag"] == f'"{answer.json["seq"]}"'
    assert answer.json["cluster"]["name"] == "home"
    assert len(answer.json["nodes"]) == 50


def test_strange_names_are_inert(server: Server) -> None:
    for name in (STRANGE, "__proto__", "<b>"):
        with pytest.raises(PeerViolation):
            NodeView(node=name, state="alive")
    assert key("__proto__") != "__proto__"
    browser = server.browser()
    told = status(job(name=STRANGE, reason=STRANGE), nodes=(node("one", reason=STRANGE, job=JOB),))
    server.take(told, **{JOB: JobDetails(events=[event(1, STRANGE, STRANGE)])})
    answer = browser.get("/api/state")
    assert b"<" not in answer.body
    assert b"\\u202e" not in answer.body
    assert b"\\u001b" not in answer.body
    plain = "<img src=x onerror=alert(1)> gnp.exe [31m"
    assert answer.json["nodes"]["one"]["reason"] == plain
    assert answer.json["jobs"][JOB]["name"] == plain
    assert answer.json["jobs"][JOB]["events"][0]["reason"] == plain
    stream = browser.stream().begin()
    seq, kind, state = stream.next() or (0, "", {})
    assert (seq, kind, state["jobs"][JOB]["name"]) == (1, "state", plain)
    stream.close()


def test_a_stream_begins_with_the_state_and_goes_on_with_patches(server: Server) -> None:
    browser = server.browser()
    server.take(status(nodes=(node("one"),)), 1000.0)
    stream = browser.stream().begin()
    seq, kind, state = stream.next() or (0, "", {})
    assert (seq, kind) == (1, "state")
    server.take(status(nodes=(node("one", state="lost", reason="not heard"), node("two"))), 1001.0)
    seq, kind, patch = stream.next() or (0, "", {})
    assert (seq, kind) == (2, "patch")
    assert patch["nodes"]["one"]["state"] == "lost"
    assert apply(state, patch) == browser.get("/api/state").json
    stream.close()


def test_a_viewer_resumes_where_it_was(server: Server) -> None:
    browser = server.browser()
    for second in range(10):
        server.take(status(nodes=(node("one", load=float(second)),)), 1000.0 + second)
    stream = browser.stream(last=7).begin()
    told = [stream.next() for _ in range(3)]
    assert [(seq, kind) for seq, kind, _ in filter(None, told)] == [(8, "patch"), (9, "patch"), (10, "patch")]
    stream.close()
    for strange in (0, 11, 9_999_999):
        stream = browser.stream(last=strange).begin()
        seq, kind, _ = stream.next() or (0, "", {})
        assert (seq, kind) == ((10, "state") if strange else (1, "patch")), "one of another story gets the whole state"
        stream.close()


def test_a_viewer_that_does_not_read_is_cut_off_and_resumes(server: Server) -> None:
    browser = server.browser()
    names = tuple(node(f"device-{number}", reason="x" * 200) for number in range(400))
    server.take(status(nodes=names), 1000.0)
    slow = browser.stream(receive_bytes=4096)
    deadline_s = time.monotonic() + PATIENCE_S
    while server.console.feed.viewers == 0:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    taken = 0
    while server.console.feed.viewers:
        assert time.monotonic() < deadline_s, "it was never cut off"
        taken += 1
        moved = tuple(node(each.node, reason=f"{taken} " + "x" * 200) for each in names)
        server.take(status(nodes=moved), 1000.0 + taken)
    assert taken >= QUEUE_MAX
    slow.begin()
    last = 0
    while (told := slow.next()) is not None:
        last = told[0]
    assert 1 <= last < taken, "what was sent before comes whole, the rest does not"
    slow.close()
    again = browser.stream(last=last).begin()
    seq, kind, _ = again.next() or (0, "", {})
    assert (seq, kind) in ((last + 1, "patch"), (taken + 1, "state"))
    again.close()


def test_a_state_is_replayed_by_the_moment_that_it_tells(server: Server) -> None:
    browser = server.browser()
    for second in range(5):
        server.take(status(nodes=(node("one", load=float(second)),)), 1000.0 + second + 0.007)
        state = browser.get("/api/state").json
        assert browser.get(f"/api/replay?at={state['at_s']}").json == state


def test_the_past_is_replayed(server: Server) -> None:
    browser = server.browser()
    assert browser.get("/api/replay").status == 503
    for second in range(130):
        state = "lost" if second >= 100 else "alive"
        told = status(job(), nodes=(node("device-1", state=state, reason="cut", job=JOB), node("device-2", job=JOB)))
        server.take(told, 1000.0 + second, **{JOB: JobDetails(evaluations=[evaluation(1, 0.9)])})
    bar = browser.get("/api/replay").json
    assert (bar["from_s"], bar["to_s"]) == (1000.0, 1129.0)
    assert [(mark["at_s"], mark["kind"]) for mark in bar["marks"]] == [(1100.0, "device.lost")]
    assert browser.get("/api/replay?at=1099").json["nodes"]["device-1"]["state"] == "alive"
    assert browser.get("/api/replay?at=1100.5").json["nodes"]["device-1"]["state"] == "lost"
    assert browser.get("/api/replay?at=999").status == 404
    lanes = browser.get("/api/lanes?from=1090&to=1110").json["lanes"]
    assert lanes["device-1"] == [[1090, 1100, "train"], [1100, 1110, "lost"]]
    assert lanes["device-2"] == [[1090, 1110, "train"]]
    series = browser.get(f"/api/series?job={JOB}&from=1000&to=1009").json
    assert series["at_s"] == [1000.0 + second for second in range(10)]
    assert set(series["version"]) == {412}
    for nonsense in ("/api/replay?at=nan", "/api/lanes?from=x&to=inf", "/api/series"):
        assert browser.get(nonsense).status == 200, nonsense


# What it does ---------------------------------------------------------------------------------------------------


def test_an_act_needs_the_value_of_its_session(server: Server) -> None:
    browser, other = server.browser(), server.browser()
    act = {"do": "publish", "job": JOB, "reason": "because"}
    for told in ("", "x", other.csrf):
        answer = browser.post("/api/act", act, x_shoal_csrf=told)
        assert answer.status == 403
        assert "load it again" in answer.json["denied"]
    answer = browser.post("/api/act", act, x_shoal_csrf=browser.csrf)
    assert (answer.status, "cannot be reached" in answer.json["denied"]) == (409, True), "it is the manager that lacks"


def test_a_viewer_cannot_act(server: Server) -> None:
    viewer = server.browser(VIEWER)
    told = viewer.get("/api/session").json
    assert (told["role"], told["allow"]) == ("viewer", [])
    answer = viewer.post("/api/act", {"do": "publish", "job": JOB, "reason": "x"}, x_shoal_csrf=told["csrf"])
    assert answer.status == 403
    assert "viewer" in answer.json["denied"]


def test_only_what_was_allowed_is_done(server: Server) -> None:
    browser = server.browser()
    csrf = browser.csrf
    assert browser.get("/api/session").json["allow"] == ["models"]
    for act, status_code in (
        ({"do": "stop", "job": JOB, "reason": "x"}, 403),
        ({"do": "drain", "node": "one", "reason": "x"}, 403),
        ({"do": "submit", "job": JOB, "reason": "x"}, 400),
        ({"do": "revoke", "node": "one", "reason": "x"}, 400),
        ({"do": "publish", "job": JOB}, 400),
        ({"do": "publish", "job": JOB, "reason": "  "}, 400),
        ({"do": "publish", "reason": "x"}, 400),
        ({"do": "roll-back", "job": JOB, "version": -1, "reason": "x"}, 400),
        ({"do": "roll-back", "job": JOB, "version": True, "reason": "x"}, 400),
        ({"do": ["publish"], "job": JOB, "reason": "x"}, 400),
        ({"do": "publish", "job": JOB, "reason": "x", "more": 1}, 400),
        ([], 400),
    ):
        answer = browser.post("/api/act", act, x_shoal_csrf=csrf)
        assert answer.status == status_code, act
        assert answer.json["denied"]
    plain = browser.ask("POST", "/api/act", json.dumps({"do": "publish"}).encode(), {"x-shoal-csrf": csrf})
    assert plain.status == 400, "a form of another site cannot say that it is JSON"
    assert browser.post("/api/act", {"do": "x" * 100_000}, x_shoal_csrf=csrf).status == 400
    assert browser.get("/api/act").status == 405


def test_a_simulation_takes_known_words_alone(server: Server) -> None:
    browser = server.browser()
    csrf = browser.csrf
    good = {"a": {"plan": {"topology": "star"}}, "devices": 4, "profile": "even"}
    for change in (
        {"devices": 2001},
        {"devices": 0},
        {"devices": "4"},
        {"devices": True},
        {"profile": "../../etc/passwd"},
        {"profile": ["even"]},
        {"task": "/etc/passwd"},
        {"a": {"plan": {"until": {"epochs": 10**9}}}},
        {"a": {"plan": {"topology": "moon"}}},
        {"a": {"plan": {"batch_size": "--faults"}}},
        {"a": {"plan": {"batch_size": 1e300}}},
        {"a": {"plan": {"learning_rate": float("nan")}}},
        {"a": {"plan": {"topology": 1}}},
        {"a": {"plan": {"seed": 1}}},
        {"a": {"plan": {"epochs": 1000}}},
        {"a": {"plan": {"until": {"accuracy": 2}}}},
        {"a": {"plan": {"until": {"accuracy": 0.9}}}, "devices": 100},
        {"a": {"plan": {"until": {"seconds": 1e9}}}},
        {"a": {"plan": {"codec": "x" * 1000}}},
        {"a": None},
        {"faults": "x"},
        {"train": True, "devices": 100},
    ):
        answer = browser.post("/api/simulate", good | change, x_shoal_csrf=csrf)
        assert answer.status == 400, change
        assert answer.json["denied"]
    assert browser.get("/api/simulate/0123").status == 404


def test_a_simulation_becomes_words_of_the_command_line() -> None:
    plan = {"plan": {"topology": "tree", "codec": "top1%+ef+4bit", "batch_size": 32, "until": {"accuracy": 0.9}}}
    asked = parse({"a": plan, "b": {"plan": {"topology": "star"}}, "devices": 12, "profile": "laptops", "task": None})
    assert asked.plans["a"] == (
        *("--plan", "batch_size=32", "--plan", 'codec="top1%+ef+4bit"', "--plan", 'topology="tree"'),
        *("--until-accuracy", "0.9", "--epochs", "5"),
    )
    assert asked.plans["b"] == ("--plan", 'topology="star"', "--epochs", "1")
    assert (asked.devices, asked.profile, asked.train) == (12, "laptops", True)


def test_someone_logs_out(server: Server) -> None:
    browser = server.browser()
    assert browser.post("/logout", {}).status == 403
    assert browser.post("/logout", {}, x_shoal_csrf=browser.csrf).status == 204
    assert browser.get("/api/session").status == 401
