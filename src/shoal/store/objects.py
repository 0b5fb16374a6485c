"""A bucket of any S3: complete objects under names, strongly consistent, durable when a call returns.

Credentials come from the environment, as every S3 client reads them (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
``AWS_REGION``, ``AWS_ENDPOINT_URL``, a role of the machine). No message of this package contains them.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shoal.errors import Misuse, ShoalError
from shoal.extras import install_command
from shoal.store.base import Away
from shoal.store.usage import StoreUsage

try:
    import obstore
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        NotFoundError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
    )
    from obstore.store import S3Store
except ImportError:
    raise Misuse(f"object storage needs a package that is not installed: {install_command('s3')}") from None

_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([A-Za-z0-9._/-]*))?")

_REQUEST_S = 60
_RETRY = datetime.timedelta(seconds=20)
_RETRIES = 4

#: Names the cluster that the objects belong to.
CLAIM = "shoal-cluster"


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectFacts:
    """An object's size and age."""

    size_bytes: int
    modified_s: float


class Objects:
    """The objects below one prefix. Methods block, and may be called from any thread."""

    def __init__(self, url: str, *, endpoint: str = "", usage: StoreUsage | None = None) -> None:
        """``url``: s3://BUCKET or s3://BUCKET/PREFIX. ``endpoint``: where the service is, if the environment does not
        say so. ``usage``: where calls are counted."""
        self._usage = usage or StoreUsage()
        found = _URL.fullmatch(url)
        if found is None:
            raise Misuse("blobs are kept in s3://BUCKET or s3://BUCKET/PREFIX: this is no such address")
        self.name = url.rstrip("/")
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        with self._errors_named():
            self._store = S3Store(
                found[1],
                prefix=(found[2] or "").strip("/") or None,
                config={"endpoint": endpoint, "virtual_hosted_style_request": False} if endpoint else None,
                client_options={"timeout": f"{_REQUEST_S}s", "allow_http": endpoint.startswith("http://")},
                retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY},
            )

    def claim(self, owner: str) -> None:
        """Belong to this cluster, or refuse: another one would take these objects for garbage."""
        for _ in range(2):
            known = self.read(CLAIM)
            if known is not None:
                if known.decode(errors="replace") != owner:
                    raise Misuse(f"{self.name} belongs to another cluster: use another bucket or prefix")
                return
            self.create(CLAIM, owner.encode())
        raise ShoalError(f"{self.name} does not give back what was put there: is it an S3?")

    def create(self, name: str, data: bytes) -> bool:
        """Create an object (``If-None-Match: *``). Return False and leave it unchanged if it exists."""
        with self._asking():
            try:
                obstore.put(self._store, name, data, mode="create")
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

    def put(self, name: str, path: Path) -> None:
        """Put a file's bytes under this name, durably, and replace any earlier object. Readers see one or the other."""
        with self._asking(), path.open("rb") as file:
            obstore.put(self._store, name, file)

    def read(self, name: str, *, start: int = 0, size_bytes: int = -1) -> bytes | None:
        """Return a small object or a range of any object, or None if it does not exist."""
        with self._asking():
            try:
                if size_bytes >= 0:
                    return bytes(obstore.get_range(self._store, name, start=start, length=size_bytes))
                return bytes(obstore.get(self._store, name).bytes())
            except (FileNotFoundError, NotFoundError):
                return None

    def fetch(self, name: str, file: BinaryIO, *, most_bytes: int) -> bool:
        """Write an object to a file. Return False if it does not exist."""
        with self._asking():
            try:
                given = obstore.get(self._store, name)
                size_bytes = int(given.meta["size"])
                if size_bytes > most_bytes:
                    raise ShoalError(f"{self.name}/{name} has {size_bytes} bytes; the maximum is {most_bytes}")
                written = 0
                for chunk in given.stream():
                    written += file.write(chunk)
            except (FileNotFoundError, NotFoundError):
                return False
            if written != size_bytes:
                # A part says nothing about what the service holds: it is asked again.
                raise Away(f"{self.name}/{name}: {written} of {size_bytes} bytes came")
            return True

    def signed_url(self, name: str, *, valid_s: float) -> str:
        """A URL by which anyone can read this object for so long. It is made here: the service is not asked."""
        with self._errors_named():
            return str(obstore.sign(self._store, "GET", name, datetime.timedelta(seconds=valid_s)))

    def facts(self, name: str) -> ObjectFacts | None:
        with self._asking():
            try:
                head = obstore.head(self._store, name)
            except (FileNotFoundError, NotFoundError):
                return None
            return ObjectFacts(size_bytes=int(head["size"]), modified_s=head["last_modified"].timestamp())

    def list(self, folder: str) -> dict[str, ObjectFacts]:
        """The objects below a folder by their names, which begin with it."""
        with self._asking():
            found = {
                str(each["path"]): ObjectFacts(
                    size_bytes=int(each["size"]), modified_s=each["last_modified"].timestamp()
                )
                for some in obstore.list(self._store, prefix=folder)
                for each in some
            }
        return {name: found[name] for name in sorted(found)}

    def remove(self, name: str) -> None:
        with self._asking(), contextlib.suppress(FileNotFoundError, NotFoundError):
            obstore.delete(self._store, name)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Ask the service: the call counts, and its errors are named."""
        with self._usage.call(), self._errors_named():
            yield

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError):
            # A policy or a key may be mended while jobs wait for it.
            raise Away(f"{self.name} refuses these credentials: check AWS_ACCESS_KEY_ID and its rights") from None
        except (BaseError, FileNotFoundError) as error:
            raise Away(f"{self.name}: {_brief(error)}") from None


def _brief(error: BaseException) -> str:
    """Return the first line of an error, without the page of XML or HTML that a service answered with: the lines below
    it describe the library's insides."""
    first = str(error).partition("\n")[0]
    return re.split(r":?\s*<[?!a-zA-Z]", first, maxsplit=1)[0][:300].strip()
