"""Plays a recording to the console's page: the same addresses and headers as `shoal console`, and no cluster behind.

It stands in for the server where the page is what is tried: a recording of a real cluster (``console_record``) goes
on, or stands still at a moment, and a test may say that something changed.

    python tests/kits/console_player.py --at 60 --port 8000
"""

from __future__ import annotations

import argparse
import bisect
import gzip
import hashlib
import json
import mimetypes
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

HERE = Path(__file__).parent
STATIC = HERE.parents[1] / "src" / "shoal" / "console" / "static"
RECORDING = HERE / "console_recording.json.gz"
SIMULATION = HERE / "console_simulation.json.gz"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"
MARKED = ("device.lost", "device.suspected", "version.published", "version.reinstated", "job.evaluated")

State = dict[str, Any]


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def thousand(state: State) -> State:
    """A state of a thousand devices, made of those of a recording."""
    rows = sorted(state["nodes"].items())
    nodes = {f"device-{i:04}": dict(rows[i % len(rows)][1]) for i in range(1000)}
    for number, node in enumerate(nodes.values()):
        if node["state"] == "lost" and number > 40:
            node |= {"state": "alive", "does": "wait", "why": "waits for the others"}
    return merged(state, {"nodes": dict.fromkeys(state["nodes"]) | nodes})


class Player:
    """``with Player(at_s=60) as player:`` then open ``player.url``."""

    def __init__(
        self, *, at_s: float | None = None, speed: float = 0.0, allow: tuple[str, ...] = (), port: int = 0,
        many: bool = False,
    ) -> None:  # fmt: skip
        record = read(RECORDING)
        self._states: list[State] = [record["first"]]
        for patch in record["patches"]:
            self._states.append(merged(self._states[-1], patch))
        if many:
            self._states = [thousand(state) for state in self._states[-60:]]
        self._times = [state["at_s"] for state in self._states]
        self._cursor = len(self._states) - 1 if at_s is None else self._index(self._times[0] + at_s)
        self._state = self._states[self._cursor]
        self._speed, self.allow = speed, allow
        self.acts: list[State] = []
        self.simulated: list[State] = []
        self._looks: dict[str, int] = {}
        self._patches: list[State] = []
        self._news = threading.Condition()
        self._over = False
        player = self

        class Handler(_Handler):
            def do_GET(self) -> None:
                self.answer(player, "GET")

            def do_POST(self) -> None:
                self.answer(player, "POST")

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Player:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        if self._speed:
            threading.Thread(target=self._go_on, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._news:
            self._over = True
            self._news.notify_all()
        self._server.shutdown()
        self._server.server_close()

    @property
    def state(self) -> State:
        return self._state

    def push(self, patch: State) -> None:
        """Something changed."""
        with self._news:
            whole = {"seq": self._state["seq"] + 1, "at_s": self._state["at_s"] + 0.5, **patch}
            self._state = merged(self._state, whole)
            self._states = [*self._states[: self._cursor + 1], self._state]
            self._times = [state["at_s"] for state in self._states]
            self._cursor += 1
            self._patches.append(whole)
            self._news.notify_all()

    def _go_on(self) -> None:
        while self._cursor + 1 < len(self._states) and not self._over:
            time.sleep((self._times[self._cursor + 1] - self._times[self._cursor]) / self._speed)
            with self._news:
                self._cursor += 1
                # Whole values of what changed at the top: a merge patch as well, only a larger one.
                self._state = self._states[self._cursor]
                self._patches.append(self._state)
                self._news.notify_all()

    def _index(self, at_s: float) -> int:
        return max(0, bisect.bisect_right(self._times, at_s) - 1)

    # Answers -------------------------------------------------------------------------------------------------------

    def session(self) -> State:
        role = "operator" if self.allow else "viewer"
        return {"role": role, "allow": list(self.allow), "csrf": "played", "version": "0.1.0"}

    def replay(self, query: dict[str, list[str]]) -> State:
        if "at" in query:
            return self._states[min(self._cursor, self._index(float(query["at"][0])))]
        marks = [
            {"at_s": event["at_s"], "kind": event["kind"], "text": f"{event['kind']}: {event['reason']}"}
            for job in self._state["jobs"].values()
            for event in job["events"]
            if event["kind"] in MARKED and event["at_s"] >= self._times[0]
        ]
        return {"from_s": self._times[0], "to_s": self._state["at_s"], "marks": marks}

    def lanes(self, query: dict[str, list[str]]) -> State:
        from_s, to_s = float(query["from"][0]), float(query["to"][0])
        lanes: dict[str, list[list[Any]]] = {}
        for state in self._states[: self._cursor + 1]:
            if not from_s <= state["at_s"] <= to_s:
                continue
            for name, node in state["nodes"].items():
                spans = lanes.setdefault(name, [])
                if spans:
                    spans[-1][1] = state["at_s"]
                if not spans or spans[-1][2] != node["does"]:
                    spans.append([state["at_s"], state["at_s"], node["does"]])
        return {"lanes": lanes}

    def series(self, query: dict[str, list[str]]) -> State:
        from_s, to_s = float(query["from"][0]), float(query["to"][0])
        columns: dict[str, list[Any]] = {"at_s": [], "version": [], "examples_per_s": [], "train_loss": []}
        columns["bytes_per_s"] = []
        before: tuple[float, int] | None = None
        for state in self._states[: self._cursor + 1]:
            progress = state["jobs"].get(query["job"][0], {}).get("progress")
            if not progress or not from_s <= state["at_s"] <= to_s:
                continue
            moved = progress["bytes_up"] + progress["bytes_down"]
            if before is not None and state["at_s"] - before[0] < 1:
                continue
            columns["at_s"].append(state["at_s"])
            for name in ("version", "examples_per_s", "train_loss"):
                columns[name].append(progress.get(name))
            columns["bytes_per_s"].append((moved - before[1]) / (state["at_s"] - before[0]) if before else None)
            before = (state["at_s"], moved)
        return columns

    def act(self, body: State) -> tuple[int, State]:
        self.acts.append(body)
        if body["reason"] == "refuse me":
            return 409, {"denied": "the manager said no"}
        return 200, {"done": f"{body['do']} was asked for"}

    def simulate(self, body: State) -> State:
        self.simulated.append(body)
        return {"id": f"s{len(self.simulated)}"}

    def simulation(self, number: str) -> State:
        looks = self._looks[number] = self._looks.get(number, 0) + 1
        if looks < 3:
            return {"state": "running", "progress": looks / 3, "reason": ""}
        plans = read(SIMULATION)["plans"]
        return {"state": "done", "progress": 1.0, "reason": "", "a": plans[0], "b": plans[1]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def answer(self, player: Player, method: str) -> None:
        parts = urlsplit(self.path)
        query, path = parse_qs(parts.query), parts.path
        try:
            if method == "POST":
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.headers.get("x-shoal-csrf") != "played":
                    self._json({"denied": "no token"}, status=403)
                elif path == "/api/act":
                    status, said = player.act(body)
                    self._json(said, status=status)
                else:
                    self._json(player.simulate(body))
            elif path == "/":
                self._send(_page(), "text/html; charset=utf-8")
            elif path.startswith("/a/"):
                file = STATIC / path.split("/", 3)[3]
                self._send(file.read_bytes(), mimetypes.guess_type(file.name)[0] or "text/plain", immutable=True)
            elif path == "/api/stream":
                self._stream(player)
            elif path.startswith("/api/simulate/"):
                self._json(player.simulation(path.rpartition("/")[2]))
            else:
                asked = {"/api/session": player.session, "/api/state": lambda: player.state}
                told = {"/api/replay": player.replay, "/api/lanes": player.lanes, "/api/series": player.series}
                if path in asked:
                    self._json(asked[path]())
                elif path in told:
                    self._json(told[path](query))
                else:
                    self.send_error(404)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _stream(self, player: Player) -> None:
        self.close_connection = True
        self.send_response(200)
        self._headers("text/event-stream", "no-store")
        self.send_header("connection", "close")
        self.end_headers()
        with player._news:
            seen, state = len(player._patches), player.state
        self._event("state", state)
        while not player._over:
            with player._news:
                player._news.wait_for(lambda seen=seen: player._over or len(player._patches) > seen, timeout=10)
                news, seen = player._patches[seen:], len(player._patches)
            for patch in news:
                self._event("patch", patch)
            if not news:
                self.wfile.write(b": still here\n\n")
            self.wfile.flush()

    def _event(self, name: str, data: State) -> None:
        self.wfile.write(f"id: {data['seq']}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def _headers(self, kind: str, cache: str) -> None:
        self.send_header("content-type", kind)
        self.send_header("content-security-policy", POLICY)
        self.send_header("x-content-type-options", "nosniff")
        self.send_header("cache-control", cache)

    def _json(self, data: Any, *, status: int = 200) -> None:
        self._send(json.dumps(data).encode(), "application/json", status=status)

    def _send(self, body: bytes, kind: str, *, status: int = 200, immutable: bool = False) -> None:
        self.send_response(status)
        self._headers(kind, "public, max-age=31536000, immutable" if immutable else "no-store")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _page() -> bytes:
    """index.html with the address of each asset by its hash."""

    def hashed(found: re.Match[str]) -> str:
        name = found[1]
        return f'"/a/{hashlib.sha256((STATIC / name).read_bytes()).hexdigest()}/{name}"'

    return re.sub(r'"a/([\w./-]+)"', hashed, (STATIC / "index.html").read_text(encoding="utf-8")).encode()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at", type=float, default=0.0, help="seconds of the recording to begin at")
    parser.add_argument("--port", type=int, default=8000)
    asked = parser.parse_args()
    with Player(at_s=asked.at, speed=1.0, allow=("models", "devices", "jobs"), port=asked.port) as playing:
        print(playing.url, flush=True)
        threading.Event().wait()
