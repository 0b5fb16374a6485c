"""Errors that name their culprit. Knows nothing else of Shoal."""


class ShoalError(Exception):
    """The root of every error Shoal raises on purpose. Its text says what happened and what to do next."""


class Misuse(ShoalError):
    """We, or the person calling us, broke a contract."""


class PeerViolation(ShoalError):
    """A peer broke the contract. Carries who did it, so that it can be counted against them."""

    def __init__(self, reason: str, *, peer: str = "") -> None:
        super().__init__(f"{peer}: {reason}" if peer else reason)
        self.reason = reason
        self.peer = peer


class BadValues(PeerViolation):
    """Numbers that no sound training gives: not finite, or far larger than usual. The model they were made with may be
    at fault rather than the peer."""


class Corrupt(ShoalError):
    """Bytes at rest do not match their recorded hash or shape."""


class Unreachable(ShoalError):
    """A peer could not be reached, or stopped answering."""


class Refused(ShoalError):
    """The cluster understood the request and said no, with a reason."""


class AnsweredElsewhere(Refused):
    """Another manager of the cluster answers this."""

    def __init__(self, reason: str, *, endpoint: str) -> None:
        super().__init__(reason)
        self.endpoint = endpoint


class JobFailed(ShoalError):
    """A job that was followed failed. Carries which, and where its logs were kept."""

    def __init__(self, reason: str, *, job: str, logs: str = "") -> None:
        super().__init__(reason)
        self.job = job
        #: A folder on this machine; empty: the logs are on the cluster's devices.
        self.logs = logs
