"""What an agent is started with: the one list of its options, for its command line and for who starts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from shoal.runtime import command_line
from shoal.runtime.command_line import HIDDEN, described, option
from shoal.runtime.paths import Paths, default_home


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AgentOptions:
    home: Path = dataclasses.field(default_factory=default_home, metadata=described("where its files are"))
    quiet: bool = option(False, "log warnings only")
    log_format: str = option("", "text or json; else as SHOAL_LOG says")
    lead_port: int = option(0, "where to listen while this device leads, or 0 for any free port")
    data: Path | None = option(None, "the folder of this device's own examples, if not as it joined")
    part: str = option("", "its part of a divided set, such as 17/1000; else as it joined")
    files: Path | None = option(None, "files of jobs, named by their hashes, that need not be fetched")
    device: str = option("", "auto, cpu, cuda:N or mps; else as it joined")
    engine: str = option("", "torch or onnx; else PyTorch where it is installed")
    threads: int = option(0, "threads of a trainer, or 0 for as many as it joined with, else all cores")
    lend: bool = option(False, "multiply matrices for clients of this cluster, too")
    hub: bool = option(False, "sum up for other devices, and train nothing")
    hub_mbps: float = option(0.0, "what a hub's link carries each way, in million bits per second, or 0 if unknown")
    metrics: str = option("", "HOST:PORT to serve this device's metrics at; else nowhere")
    metrics_token_file: Path | None = option(None, "the bearer token that scrapers send")
    hours: str = option("", "when this device works, such as 22-6; else always")
    max_temperature_c: float = option(0.0, "rest while it is warmer, in Celsius", flag="--max-temperature")
    cores: int = option(0, "how many cores it works on, or 0 for all")
    leash: bool = option(False, "end when standard input closes")
    #: Below it the system has its sensors.
    sensors_root: Path = option(Path("/"), HIDDEN)
    child_module: str = option("shoal.trainer.child", HIDDEN)
    #: The least that a batch takes.
    pace_s: float = option(0.0, HIDDEN)
    #: For tests with a bucket on this machine.
    loopback_http: bool = option(False, HIDDEN)

    @property
    def places(self) -> Paths:
        return Paths(self.home)

    @property
    def hub_bytes_per_s(self) -> float:
        return self.hub_mbps * 1e6 / 8

    def to_argv(self) -> list[str]:
        """Return the arguments of ``python -m shoal.runtime.agent_main`` that give these options."""
        return command_line.to_argv(self)

    @classmethod
    def parse(cls, argv: Sequence[str]) -> Self:
        return command_line.parse(cls, argv, program="shoal-agent", purpose="Run this enrolled device's agent.")
