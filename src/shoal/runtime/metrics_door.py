"""Where metrics are served: an address, and the token that a scraper must send. Checked before anything listens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import Misuse
from shoal.identity.join_code import split_endpoint
from shoal.runtime.reachable import listens_on_loopback

#: A token shorter than this can be guessed; a longer file is none.
TOKEN_LEAST_CHARS, TOKEN_MOST_CHARS = 16, 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsDoor:
    host: str
    #: 0: any free one.
    port: int
    #: Empty: a scraper needs none.
    token: str = field(default="", repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"


def listen_at(listen: str, *, token_file: Path | None = None) -> MetricsDoor:
    """From ``HOST:PORT`` and the file with the token, which is needed where other machines can connect."""
    try:
        host, port = split_endpoint(listen)
    except (Misuse, ValueError):
        raise Misuse(f"metrics are served at HOST:PORT, such as 127.0.0.1:7073; {listen[:80]!r} is not one") from None
    token = _token(token_file) if token_file is not None else ""
    if not token and not listens_on_loopback(host):
        raise Misuse(
            f"other machines can read the metrics at {host}: write a token to a file (`openssl rand -hex 32`), name it"
            " with the option for the token file, and give the same token to Prometheus; or listen on 127.0.0.1"
        )
    return MetricsDoor(host=host, port=port, token=token)


def _token(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(TOKEN_MOST_CHARS + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"the token file {file} cannot be read: {error}") from None
    if not TOKEN_LEAST_CHARS <= len(text) <= TOKEN_MOST_CHARS or not text.isascii() or not text.isprintable():
        raise Misuse(
            f"the token in {file} must be one line of at least {TOKEN_LEAST_CHARS} plain characters:"
            f" `openssl rand -hex 32 > {file}` makes one"
        )
    return text
