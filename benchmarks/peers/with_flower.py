"""Flower on the machines: a SuperLink, four SuperNodes, an app given to them with ``flwr run``. No simulation."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.peers.bed import Machine, command_of, wait_until
from benchmarks.peers.deployment import COMMAND_S, HERE, START_S, Deployment, Setting
from benchmarks.peers.shares import CLIENTS

#: Neither counts of use nor questions for a newer release leave this machine.
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


class FlowerDeployment(Deployment):
    setup = (
        "flower-superlink, four flower-supernode, flwr run (its Deployment Runtime) as in its guide: --insecure, so"
        " without TLS; --database, so that a new server knows its nodes; no installation of dependencies while it runs"
    )
    keeps_model = True
    install = ("pip", "install", "flwr", "torch", "numpy")

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._saved_ns = 0
        self._seen: list[int] = []
        self._project = setting.machines.folder / "flower_app"
        shutil.copytree(self.app, self._project, ignore=shutil.ignore_patterns("__pycache__"))

    @property
    def app(self) -> Path:
        return HERE / "flower_app"

    def start_server(self) -> None:
        said = len(self.server.said())
        command = ("flower-superlink", "--insecure", "--host", "0.0.0.0", "--database", "state.db")
        self._start(self.server, *command, "--disable-runtime-dependency-installation")
        ready = "Uvicorn running"
        wait_until(lambda: ready in self.server.said()[said:], limit_s=START_S, what="Flower's SuperLink")
        self._configure()

    def start_client(self, client: Machine) -> None:
        command = ("flower-supernode", "--insecure", "--superlink", f"{self.server.address}:8000")
        self._start(client, *command, "--node-config", f'folder="{self.share_of(client)}"')

    def wait_for_clients(self) -> None:
        def registered() -> bool:
            return self.server.said().count("ActivateNode") >= CLIENTS

        wait_until(registered, limit_s=START_S, what="four SuperNodes")

    def submit(self, rounds: int) -> None:
        self._seen = []
        run_config = f'num-server-rounds={rounds} model-file="{self._model}"'
        command = ("flwr", "run", str(self._project), "digits", "--run-config", run_config)
        self.typed.note(command)
        self._run(*command)

    def models(self) -> list[int]:
        """The app saves each round's model: a file that changed is another one."""
        saved_ns = self._model.stat().st_mtime_ns if self._model.exists() else 0
        if saved_ns != self._saved_ns:
            self._saved_ns = saved_ns
            self._seen.append(len(self._seen) + 1)
        return self._seen

    def state(self) -> str:
        try:
            return self._run("flwr", "ls", "digits")
        except Exception as error:
            return str(error)

    def fetch_model(self) -> Path:
        wait_until(lambda: not self._app_runs(), limit_s=COMMAND_S, what="the end of Flower's ServerApp")
        return self._model

    def _app_runs(self) -> bool:
        return any("flwr-serverapp" in command_of(pid) for pid in self.server.processes())

    @property
    def _model(self) -> Path:
        return self.server.home / "model.pt"

    def _configure(self) -> None:
        """The address of the SuperLink, where the user's own machine looks for it."""
        text = (self.app / "config.toml").read_text(encoding="utf-8").replace("ADDRESS", self.server.address)
        place = self.server.home / ".flwr" / "config.toml"
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def _start(self, machine: Machine, *command: str) -> None:
        self.typed.note(command)
        machine.start(*command, environment=self.environment(machine, _QUIET))

    def _run(self, *command: str) -> str:
        environment = self.environment(self.server, _QUIET)
        return self.server.run(*command, environment=environment, cwd=self._project, limit_s=COMMAND_S)


class FlowerWithTimeout(FlowerDeployment):
    """The same, told how long a round may take: Flower aggregates what has come by then, without the node that died.

    By itself it waits for a node until two of its heartbeats, of 30 s each, are missing.
    """

    #: A longer timeout only adds waiting; a shorter one would cut off a node that is slow in one round.
    _ROUNDS = 2.0
    _LAST_ARGUMENT = "evaluate_fn=save,\n"

    def expect(self, round_s: float) -> None:
        server_app = self._project / "digits" / "server_app.py"
        text = server_app.read_text(encoding="utf-8")
        assert text.count(self._LAST_ARGUMENT) == 1
        timeout = f"{self._LAST_ARGUMENT}        timeout={self._ROUNDS * round_s:.1f},\n"
        server_app.write_text(text.replace(self._LAST_ARGUMENT, timeout), encoding="utf-8")
