"""What a manager is started with: the one list of its options, for `shoal up`, its command line and who starts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from shoal.errors import Misuse
from shoal.identity.identity import MEMBER_VALID_DAYS
from shoal.roles.manager.retention import KeepJobs
from shoal.runtime import command_line
from shoal.runtime.command_line import described, option
from shoal.runtime.paths import Paths
from shoal.runtime.tab_door import TabDoorOptions

#: The values of ``--lead``, and whether devices then lead rather than this machine. None if each plan decides.
LEAD: dict[str, bool | None] = {"auto": None, "here": False, "devices": True}

#: When a join line is made: at every start, never, or only while no device has joined yet.
TOKEN = ("always", "never", "first")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ManagerOptions:
    home: Path = dataclasses.field(metadata=described("where the cluster's files are"))
    host: str = option("127.0.0.1", "the address to listen on")
    port: int = option(0, "devices work over this port and join over the next one, or 0 if the system chooses both")
    #: With HOST:PORT they join over the next port. The managers after commas share the ``store``.
    advertise: str = option("", "where devices dial it, and other managers after commas")
    direct: str = option("", "where devices dial this manager only, behind a proxy")
    name: str = option("shoal", "what to call a new cluster")
    token: str = option("always", "when to make a join line", choices=TOKEN)
    devices: int = option(1000, "how many devices may use the line")
    token_hours: float = option(24.0, "how long the line can be used")
    approve: bool = option(False, "devices that join wait to be approved")
    announce: bool = option(False, "announce the cluster on the local network")
    certificate_days: float = option(MEMBER_VALID_DAYS, "how long a device's certificate is valid")
    lead: str = option("auto", "where leaders run", choices=tuple(LEAD))
    quiet: bool = option(False, "log warnings only")
    log_format: str = option("", "text or json; else as SHOAL_LOG says")
    disk_quota_bytes: int = option(0, "the most that the cluster's files may take, or 0 for all of the disk")
    keep_jobs: str = option("", "which ended jobs are kept, such as 90d or 500; else all")
    contribute_mb: int = option(0, "megabytes of entries that each device may add to shared sets, or 0 for none")
    check_in_s: float = option(0.0, "when devices without work come again, or 0 if they stay connected")
    store: str = option("", "postgresql://HOST/DATABASE; else a file of the home")
    blobs: str = option("", "s3://BUCKET/PREFIX; else a folder of the home")
    downloads: str = option(
        "manager", "where devices download files of a bucket: manager, bucket or https://CDN/PREFIX"
    )
    browser: str = option("", "the origin where tabs of browsers come in")
    browser_certificate: Path | None = option(None, "of the origin, PEM")
    browser_key: Path | None = option(None, "of the certificate")
    browser_operator: str = option("", "who runs the cluster, as visitors read it")
    browser_purpose: str = option("", "what the cluster trains for, as visitors read it")
    browser_origin: str = option("", "other sites whose pages may use the door for tabs, with commas between them")
    leash: bool = option(False, "end when standard input closes")

    def __post_init__(self) -> None:
        command_line.check_choices(self)
        if self.blobs and self.disk_quota_bytes:
            raise Misuse("--disk-quota bounds the files of this home, and --blobs keeps them elsewhere: choose one")
        if self.contribute_mb < 0:
            raise Misuse(f"--contribute-mb is {self.contribute_mb}; it must be 0 or more")
        if self.direct and not self.store:
            raise Misuse("--direct is for one of several managers, and without --store this one is alone")
        # Both refuse what they cannot read.
        _ = self.kept_jobs, self.tabs

    @property
    def places(self) -> Paths:
        return Paths(self.home)

    @property
    def prefers_devices(self) -> bool | None:
        """Return whether devices lead rather than this machine, or None if each plan decides."""
        return LEAD[self.lead]

    @property
    def kept_jobs(self) -> KeepJobs | None:
        """Return which ended jobs are kept, or None for all."""
        return KeepJobs.parse(self.keep_jobs) if self.keep_jobs else None

    @property
    def tabs(self) -> TabDoorOptions | None:
        """Return where tabs of browsers come in, or None if they may not."""
        files = (self.browser_certificate, self.browser_key)
        if not any((self.browser, *files, self.browser_operator, self.browser_purpose, self.browser_origin)):
            return None
        return TabDoorOptions(
            origin=self.browser,
            certificate=self.browser_certificate,
            key=self.browser_key,
            operator=self.browser_operator,
            purpose=self.browser_purpose,
            origins=tuple(filter(None, self.browser_origin.split(","))),
        )

    def to_argv(self) -> list[str]:
        """Return the arguments of ``python -m shoal.runtime.manager_main`` that give these options."""
        return command_line.to_argv(self)

    @classmethod
    def parse(cls, argv: Sequence[str]) -> Self:
        purpose = "Run a manager; prints one JSON line when up."
        return command_line.parse(cls, argv, program="shoal-manager", purpose=purpose)
