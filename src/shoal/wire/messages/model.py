"""Models and other bytes by their hash; which version of a model is served."""

from __future__ import annotations

from shoal.errors import PeerViolation
from shoal.wire.messages.base import Message, is_sha256, message
from shoal.wire.messages.metrics import MetricView, check_views


@message()
class ServedView(Message):
    """The published version that a job serves now."""

    version: int
    sha256: str
    #: How it was judged when it was published; None: it was not.
    accuracy: float | None = None
    examples: int = 0
    #: Why this one is served.
    reason: str = ""
    #: Why none is published by itself now; empty: one is, as the plan says.
    hold: str = ""
    #: What came of the latest evaluation.
    verdict: str = ""
    metrics: tuple[MetricView, ...] = ()

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        check_views(self.metrics)


@message(said_by={"Fetch": ("node", "browser", "operator"), "Store": ("operator",)})
class Blob(Message):
    """A content-addressed blob: asked for, announced before its chunks, or received."""

    sha256: str
    size_bytes: int = 0
    #: In a question: the device can download it from a URL.
    takes_url: bool = False
    #: In an answer: no chunks follow, it is to be downloaded here. Empty: its chunks follow.
    url: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not is_sha256(self.sha256):
            raise PeerViolation(f"a blob is named by its sha256, not {self.sha256[:80]!r}")
        if self.url and not self.url.startswith(("https://", "http://")):
            raise PeerViolation("a blob is downloaded over https")


@message(said_by={"Operate": ("operator",)})
class AskModel(Message):
    """A job's model, as a safetensors blob: the one that is served, or the newest durable one where none is."""

    job: str
    #: A published version by its number; 0: the one that is served.
    version: int = 0
    #: The newest durable one, whatever is served.
    newest: bool = False


@message()
class PublishedView(Message):
    """A version that was published, and is kept."""

    version: int
    #: Counts what was published of a job.
    number: int
    epoch: int = 0
    #: How it was judged when it was published; None: it was not.
    accuracy: float | None = None
    loss: float | None = None
    examples: int = 0
    sha256: str = ""
    size_bytes: int = 0
    #: Seconds since 1970 by the manager's clock.
    at_s: float = 0.0
    reason: str = ""
    metrics: tuple[MetricView, ...] = ()

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        check_views(self.metrics)


@message(to="manager", said_by={"Operate": ("operator",)})
class PublishModel(Message):
    """Serve the newest durable version of a job from now on."""

    job: str
    reason: str = ""


@message(to="manager", said_by={"Operate": ("operator",)})
class RollBackModel(Message):
    """Serve a version again that was published earlier; 0: the one before the one that is served."""

    job: str
    version: int = 0
    reason: str = ""
    #: Nothing is published by itself before an evaluation is surely this good; None: before an operator publishes.
    until_accuracy: float | None = None

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.until_accuracy is not None and not 0 < self.until_accuracy <= 1:
            raise PeerViolation(f"an accuracy is a share between 0 and 1, not {self.until_accuracy}")


@message(to="manager", said_by={"Operate": ("operator",)})
class AskVersions(Message):
    """The versions of a job that were published and are kept."""

    job: str


@message()
class VersionList(Message):
    job: str
    #: Oldest first.
    versions: tuple[PublishedView, ...] = ()
    served: ServedView | None = None
