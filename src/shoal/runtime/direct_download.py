"""Downloads a blob from a bucket or a CDN by its URL, and continues where a connection broke. Knows no cluster.

The manager names the URL. The device sends a plain GET to it, without credentials, and follows no redirect. It keeps
the answer only if its size and hash are those that were announced (``store.blobs``). The URL must be https: otherwise
a manager could have a device send requests to services that listen on the device itself.
"""

from __future__ import annotations

import http.client
import ipaddress
import threading
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from shoal.errors import ShoalError
from shoal.runtime.no_redirect import NoRedirect
from shoal.store.blobs import BlobWriter
from shoal.version import __version__
from shoal.wire.limits import CHUNK_BYTES

#: No answer, or no byte of it, within this: the connection is broken.
SILENCE_S = 20.0

#: Connections that may bring nothing, one after the other.
_IN_VAIN_MAX = 3


class NotDownloaded(ShoalError):
    """The URL does not give the blob: it is to be had from the manager."""


def download(
    url: str, writer: BlobWriter, *, size_bytes: int, stop: threading.Event, loopback_http: bool = False
) -> None:
    """Feed a blob of this size to its writer. Blocks; ``stop`` ends it early. Raises NotDownloaded with the reason.

    ``loopback_http`` also takes http from this machine. It is for tests, whose buckets have no certificate.
    """
    _check(url, loopback_http=loopback_http)
    at, in_vain = 0, 0
    while at < size_bytes:
        before = at
        try:
            with _open(url, at) as answer:
                _check_range(answer, at)
                while chunk := answer.read(min(CHUNK_BYTES, size_bytes - at)):
                    if stop.is_set():
                        raise NotDownloaded("the download was stopped")
                    writer.feed(chunk)
                    at += len(chunk)
            reason = f"it ended after {at} of {size_bytes} bytes"
        except urllib.error.HTTPError as error:
            with error:
                raise NotDownloaded(f"{_host(url)} answered {error.code}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", "")) or str(error) or type(error).__name__
        in_vain = 0 if at > before else in_vain + 1
        if at < size_bytes and in_vain == _IN_VAIN_MAX:
            raise NotDownloaded(f"{_host(url)}: {reason}")


def _check(url: str, *, loopback_http: bool) -> None:
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if loopback_http and parts.scheme == "http" and _is_loopback(parts.hostname or ""):
        return
    raise NotDownloaded(f"{parts.scheme}://{parts.hostname} is not https")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _open(url: str, at: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": f"shoal/{__version__}", "Accept-Encoding": "identity"}
    if at:
        headers["Range"] = f"bytes={at}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  its scheme was checked
    answer: http.client.HTTPResponse = urllib.request.build_opener(NoRedirect).open(request, timeout=SILENCE_S)
    return answer


def _check_range(answer: http.client.HTTPResponse, at: int) -> None:
    if at and (answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {at}-")):
        raise NotDownloaded("the connection broke, and the server gives no part of an object")


def _host(url: str) -> str:
    # The host alone: a signed URL is a key to the object until it expires.
    return urlsplit(url).hostname or "the URL"
