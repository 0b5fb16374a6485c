"""What a supervisor asks over HTTP: whether the process serves (``/healthz``), whether devices may come (``/readyz``).

Answers strangers: it says no name and no address, and uses one line of what it reads.
"""

from __future__ import annotations

#: What a caller offers in its TLS handshake that speaks HTTP. Devices that join offer nothing.
ALPN = "http/1.1"

HEALTH, READY = "/healthz", "/readyz"


def status_of(path: str, trouble: str) -> tuple[str, str] | None:
    """Return the status line and the text for a path, or None if it is neither of the two. ``trouble``: why a device
    that dials now would not be served, or empty."""
    match path.partition("?")[0]:
        case "/healthz":
            return "200 OK", "ok"
        case "/readyz":
            return ("503 Service Unavailable", f"not ready: {trouble}") if trouble else ("200 OK", "ready")
    return None


def answer(request: bytes, trouble: str) -> bytes:
    """Return the whole response to the head of a request."""
    method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    found = status_of(rest.split(" ")[0].strip(), trouble)
    if method not in ("GET", "HEAD", "OPTIONS"):
        found = "405 Method Not Allowed", "ask with GET"
    status, text = found or ("404 Not Found", f"ask for {HEALTH} or {READY}")
    body = b"" if method == "HEAD" else f"{text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
