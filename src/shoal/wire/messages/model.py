"""Blobs by their hash, and the published versions of a model."""

from __future__ import annotations

from shoal.errors import PeerViolation
from shoal.wire.messages.base import Message, is_sha256, message
from shoal.wire.messages.metrics import MetricView, check_views


@message()
class ServedView(Message):
    """The published version that a job serves now."""

    version: int
    sha256: str
    #: Its accuracy when it was published. None if it was not evaluated.
    accuracy: float | None = None
    examples: int = 0
    #: Why this version is served.
    reason: str = ""
    #: Why no version is published automatically now. Empty if the plan's rule applies.
    hold: str = ""
    #: The decision about the latest evaluation, as text for people.
    verdict: str = ""
    metrics: tuple[MetricView, ...] = ()

    def _check(self) -> None:
        check_views(self.metrics)


@message(said_by={"Fetch": ("node", "browser", "operator"), "Store": ("operator",)})
class Blob(Message):
    """A content-addressed blob: requested, announced before its chunks, or received."""

    sha256: str
    size_bytes: int = 0
    #: In a request: whether the device can download it from a URL.
    takes_url: bool = False
    #: In an answer: where to download it. Empty if its chunks follow.
    url: str = ""

    def _check(self) -> None:
        if not is_sha256(self.sha256):
            raise PeerViolation(f"a blob is named by its sha256, not {self.sha256[:80]!r}")
        if self.url and not self.url.startswith(("https://", "http://")):
            raise PeerViolation(f"Blob.url is {self.url[:80]!r}; it must begin with https:// or http://")


@message(said_by={"Operate": ("operator",)})
class AskModel(Message):
    """Ask for a job's model as a safetensors blob: the served version, or the newest durable one if none is served."""

    job: str
    #: The published version to return. 0 means the served one.
    version: int = 0
    #: Return the newest durable version, whichever is served.
    newest: bool = False


@message()
class PublishedView(Message):
    """A version that was published and is still kept."""

    version: int
    #: Counts a job's publications.
    number: int
    epoch: int = 0
    #: Its accuracy and loss when it was published. None if it was not evaluated.
    accuracy: float | None = None
    loss: float | None = None
    examples: int = 0
    sha256: str = ""
    size_bytes: int = 0
    #: Seconds since 1970 by the manager's clock.
    at_s: float = 0.0
    reason: str = ""
    metrics: tuple[MetricView, ...] = ()

    def _check(self) -> None:
        check_views(self.metrics)


@message(to="manager", said_by={"Operate": ("operator",)})
class PublishModel(Message):
    """Publish the newest durable version of a job, and serve it from now on."""

    job: str
    reason: str = ""


@message(to="manager", said_by={"Operate": ("operator",)})
class RollBackModel(Message):
    """Serve a version again that was published earlier, or with 0 the one before the served version."""

    job: str
    version: int = 0
    reason: str = ""
    #: No version is published automatically until an evaluation certainly reaches this accuracy. None means until an
    #: operator publishes one.
    until_accuracy: float | None = None

    def _check(self) -> None:
        if self.until_accuracy is not None and not 0 < self.until_accuracy <= 1:
            raise PeerViolation(
                f"RollBackModel.until_accuracy is {self.until_accuracy}; it must be above 0 and at most 1"
            )


@message(to="manager", said_by={"Operate": ("operator",)})
class AskVersions(Message):
    """Ask for the published versions of a job that are still kept."""

    job: str


@message()
class VersionList(Message):
    job: str
    #: Oldest first.
    versions: tuple[PublishedView, ...] = ()
    served: ServedView | None = None
