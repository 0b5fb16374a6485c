"""NVFLARE on the machines: kits of a provisioned project, a server, four sites, a job of its recipe. No simulation."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from benchmarks.peers.bed import Machine, Stuck, wait_until
from benchmarks.peers.deployment import COMMAND_S, HERE, START_S, Deployment, Setting
from benchmarks.peers.shares import CLIENTS

ADMIN = "admin@nvidia.com"
#: Where a server keeps jobs unless it is told otherwise: one place for all servers of a machine.
_STORAGE = "/tmp/nvflare"  # noqa: S108
_MODEL = "FL_global_model.pt"
_JOB = re.compile(r"^\.*job (\S+)", re.MULTILINE)
_RESULT = re.compile(r"\bresult (/\S+)")


class NvflareDeployment(Deployment):
    setup = (
        "nvflare provision, the kit's start.sh on each machine (mutual TLS; it starts a dead process again),"
        " FedAvgRecipe with ProdEnv; POC mode is the same on loopback alone"
    )
    install = ("pip", "install", "nvflare", "torch", "numpy")
    #: The user's program that gives the job.
    job = "job.py"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._project = setting.machines.folder / "nvflare_app"
        for app in (HERE / "nvflare_app", self.app):
            shutil.copytree(app, self._project, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        self._said = 0
        self._saved_ns = 0
        self._seen: list[int] = []

    @property
    def app(self) -> Path:
        return HERE / "nvflare_app"

    def start_server(self) -> None:
        if not self._kits.exists():
            self._provision()
        logged = len(self._log())
        self._start(self.server, str(self._kits / "server" / "startup" / "start.sh"))
        wait_until(lambda: "Server started" in self._log()[logged:], limit_s=START_S, what="NVFLARE's server")

    def start_client(self, client: Machine) -> None:
        self._start(client, str(self._kits / client.name / "startup" / "start.sh"))

    def wait_for_clients(self) -> None:
        def joined() -> bool:
            return len(set(re.findall(r"Client: New client (\S+?)@", self._log()))) >= CLIENTS

        wait_until(joined, limit_s=START_S, what="four sites of NVFLARE")

    def submit(self, rounds: int) -> None:
        self._seen = []
        self._said = len(self.server.said())
        options = ("--rounds", str(rounds), "--shares", str(self.setting.shares), "--admin", str(self._kits / ADMIN))
        self._start(self.server, "python", self.job, *options, cwd=self._project)
        wait_until(lambda: _JOB.search(self.server.said()[self._said :]), limit_s=COMMAND_S, what="NVFLARE's job")

    def models(self) -> list[int]:
        """Its server saves each round's model: a file that changed is another one."""
        found = list((self._kits / "server").glob(f"{self._job}/app_server/{_MODEL}"))
        saved_ns = found[0].stat().st_mtime_ns if found else 0
        if saved_ns and saved_ns != self._saved_ns:
            self._saved_ns = saved_ns
            self._seen.append(len(self._seen) + 1)
        return self._seen

    def state(self) -> str:
        return self._log()[-600:]

    def fetch_model(self) -> Path:
        wait_until(lambda: _RESULT.search(self.server.said()[self._said :]), limit_s=COMMAND_S, what="NVFLARE's result")
        found = _RESULT.search(self.server.said()[self._said :])
        assert found is not None
        models = list(Path(found[1]).rglob(_MODEL))
        if not models:
            raise Stuck(f"NVFLARE's result has no {_MODEL}: {found[1]}")
        return models[0]

    @property
    def _job(self) -> str:
        found = _JOB.search(self.server.said()[self._said :])
        return found[1] if found else "none"

    @property
    def _kits(self) -> Path:
        return self._project / "workspace" / "digits" / "prod_00"

    def _log(self) -> str:
        log = self._kits / "server" / "log.txt"
        return log.read_text(errors="replace") if log.exists() else ""

    def _provision(self) -> None:
        file = self._project / "project.yml"
        file.write_text(file.read_text(encoding="utf-8").replace("ADDRESS", self.server.address), encoding="utf-8")
        command = ("nvflare", "provision", "-p", str(file))
        self.typed.note(command)
        environment = self.environment(self.server)
        self.server.run(*command, environment=environment, cwd=self._project, limit_s=COMMAND_S)
        # Apart from other servers on this machine, and gone with the rest: no user has to do this.
        local = self._kits / "server" / "local"
        text = (local / "resources.json.default").read_text(encoding="utf-8")
        text = text.replace(_STORAGE, str(self.server.home / "storage"))
        (local / "resources.json").write_text(text, encoding="utf-8")

    def _start(self, machine: Machine, *command: str, cwd: Path | None = None) -> None:
        self.typed.note(command)
        machine.start(*command, environment=self.environment(machine), cwd=cwd)


class NvflareThreeOfFour(NvflareDeployment):
    """A round ends a second after three sites have answered. ``FedAvgRecipe`` has no such setting: a round of its
    controller waits for all sites that it asked. ``ScatterAndGather`` has one.
    """

    setup = "as NVFLARE, but ScatterAndGather with min_clients=3 and wait_time_after_min_received=1"
    job = "job_of_three.py"

    @property
    def app(self) -> Path:
        return HERE / "nvflare_three_app"
