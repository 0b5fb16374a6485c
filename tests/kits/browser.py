"""A browser of few words: keeps its cookie, reads server-sent events. No script, no page."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
from typing import Any

#: A busy machine takes its time.
PATIENCE_S = 120.0


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        body = response.read()
        self.packed_bytes = len(body)
        self.body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Browser:
    """Keeps its cookie; sends what a test says besides."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""
        #: Of the session: what the console's page reads behind the # of its address.
        self.key = ""

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, headers)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        if isinstance(body, bytes):
            return self.ask("POST", path, body, headers)
        return self.ask("POST", path, json.dumps(body).encode(), {"content-type": "application/json"} | headers)

    def ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        told = {"accept-encoding": "gzip", **({"cookie": self.cookie} if self.cookie else {})}
        told |= {"x-shoal-key": self.key} if self.key else {}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.request(method, path, body, told)
            answer = Answer(connection.getresponse())
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            self.key = answer.headers["location"].partition("#key=")[2]
        return answer

    @property
    def csrf(self) -> str:
        return str(self.get("/api/session").json["csrf"])

    def stream(self, last: int | None = None, *, receive_bytes: int = 0) -> Stream:
        return Stream(self, last, receive_bytes)


class Stream:
    """Server-sent events, one at a time."""

    def __init__(self, browser: Browser, last: int | None, receive_bytes: int) -> None:
        self._socket = socket.socket()
        if receive_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect(("127.0.0.1", browser.port))
        resume = f"Last-Event-ID: {last}\r\n" if last is not None else ""
        # As a browser's EventSource, which sends no headers of a page.
        head = (
            f"GET /api/stream?key={browser.key} HTTP/1.1\r\nHost: 127.0.0.1:{browser.port}\r\n"
            f"Cookie: {browser.cookie}\r\n{resume}\r\n"
        )
        self._socket.sendall(head.encode())
        self._response = http.client.HTTPResponse(self._socket, method="GET")

    def begin(self) -> Stream:
        self._response.begin()
        assert self._response.status == 200, self._response.read()
        assert self._response.getheader("content-type", "").startswith("text/event-stream")
        return self

    def next(self) -> tuple[int, str, Any] | None:
        """(id, kind, data) of the next event; None: the stream is over."""
        told: dict[str, str] = {}
        while True:
            try:
                line = self._response.readline().decode().rstrip("\n")
            except (http.client.IncompleteRead, ConnectionError, ValueError):
                return None
            if not line and not self._response.fp:
                return None
            if line:
                name, _, value = line.partition(": ")
                told[name] = value
            elif "data" in told:
                return int(told["id"]), told["event"], json.loads(told["data"])
            else:
                if not told:
                    return None
                told = {}

    def close(self) -> None:
        self._response.close()
        self._socket.close()
