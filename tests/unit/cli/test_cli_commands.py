"""The commands as a person types them: their help, their exit codes, and one clear line for every error."""

from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from statuses import JOB, job, node, status

from shoal import __version__
from shoal.cli import main
from shoal.cli.commands import join, nodes, train, up
from shoal.cli.exits import MEANING, Exit, NoCluster, exit_code_of, exit_for_state
from shoal.cli.render.plain_json import to_plain
from shoal.cli.select_job import pick_job
from shoal.data.local import LOCAL_VARIABLE, PART_VARIABLE
from shoal.errors import Corrupt, Misuse, PeerViolation, Refused, ShoalError, Unreachable
from shoal.identity.enrolment import Enrolled
from shoal.identity.identity import Authority
from shoal.identity.join_code import JoinCode, new_secret
from shoal.plan import Plan, Until
from shoal.runtime import own_data, own_share
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.manager_start import ManagerReady
from shoal.runtime.paths import Paths
from shoal.runtime.privacy_accounts import limit_of
from shoal.states import JobState
from shoal.wire.messages import Facts, Status

COMMANDS = [
    ["demo"],
    ["up"],
    ["join"],
    ["token"],
    ["token", "create"],
    ["token", "list"],
    ["token", "revoke"],
    ["service"],
    ["service", "install"],
    ["service", "status"],
    ["service", "uninstall"],
    ["backup"],
    ["restore"],
    ["doctor"],
    ["logs"],
    ["metrics"],
    ["train"],
    ["simulate"],
    ["plan", "explain"],
    ["attach"],
    ["status"],
    ["nodes"],
    ["nodes", "revoke"],
    ["nodes", "approve"],
    ["nodes", "key"],
    ["nodes", "drain"],
    ["nodes", "undrain"],
    ["nodes", "forget"],
    ["managers"],
    ["managers", "drain"],
    ["managers", "undrain"],
    ["gc"],
    ["jobs", "rm"],
    ["jobs"],
    ["jobs", "show"],
    ["jobs", "stop"],
    ["model"],
    ["model", "pull"],
    ["model", "follow"],
    ["model", "versions"],
    ["model", "publish"],
    ["model", "rollback"],
]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHOAL_DEBUG", "0")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*command, "--help"]) == Exit.OK
    text = capsys.readouterr().out
    assert "Usage: shoal" in text
    if command != ["model"]:
        assert "Example:" in text
        assert f"shoal {' '.join(command)}" in text
    if command not in (["demo"], ["model"]) and (command[0] != "service" or command[-1] == "install"):
        assert "--home" in text


def test_the_help_lists_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == Exit.OK
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert command[0] in text
    for code, meaning in MEANING.items():
        assert str(code.value) in text
        assert meaning.split("`")[0].strip()[:20] in text


def test_the_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from shoal.cli.main import run; run(['--help']);"
        "print([name for name in ('numpy', 'grpc', 'cryptography', 'torch', 'asyncio') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    from shoal import __version__

    assert main.run(["--version"]) == Exit.OK
    assert capsys.readouterr().out == f"shoal {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Misuse("x"), 2),
        (Corrupt("x"), 2),
        (ShoalError("x"), 2),
        (Unreachable("x"), 3),
        (NoCluster("x"), 3),
        (Refused("x"), 4),
        (PeerViolation("x"), 4),
        (KeyboardInterrupt(), 130),
        (RuntimeError("x"), 70),
    ],
)
def test_every_error_has_its_code(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code


def test_the_codes_never_change() -> None:
    assert {code.name: code.value for code in Exit} == {
        "OK": 0,
        "FAILED": 1,
        "MISUSE": 2,
        "UNREACHABLE": 3,
        "REFUSED": 4,
        "UNFIT": 5,
        "BUG": 70,
        "INTERRUPTED": 130,
    }
    assert set(MEANING) == set(Exit)
    assert [exit_for_state(state) for state in ("finished", "failed", "stopped")] == [0, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nonsense"], 2, "nonsense"),
        (["train"], 2, "TASK"),
        (["up", "--port", "x"], 2, "--port"),
        (["train", "no/such/task"], 2, "neither a directory nor a Python file"),
        (["train", "x", "--workers", "4:2"], 2, "wait for more workers than it may take"),
        (["train", "x", "--until-accuracy", "98"], 2, "write 0.98"),
        (["train", "x", "--plan", "nope=1"], 2, "a plan has no 'nope'"),
        (["train", "x", "--plan", "lerning_rate=0.1"], 2, "did you mean learning_rate?"),
        (["train", __file__], 2, "start it with `shoal run"),
        (["metrics", "--port", "7", "--listen", "127.0.0.1:8"], 2, "leave out --listen or --port"),
        (["service", "install", "agent", "--dry-run", "--line-file", __file__], 2, "starts with shoal://"),
        (["train", "x", "--topology", "ring"], 2, "there is: star, tree, shard, auto"),
        (["train", "x", "--topology", "shard", "--pace", "async"], 2, "each aggregator of a shard"),
        (["train", "x", "--topology", "tree", "--aggregators", "-1"], 2, "aggregators is a number from 0"),
        (["status"], 3, "shoal up"),
        (["jobs", "stop", "x"], 3, "shoal up"),
        (["nodes", "revoke", "x"], 3, "shoal up"),
        (["nodes", "revoke"], 2, "NODE"),
        (["join", "--anew"], 2, "shoal up"),
        (["token", "create"], 3, "shoal up"),
        (["token", "create", "--role", "manager"], 2, "operator"),
        (["token", "create", "--uses", "0"], 2, "--uses"),
        (["token", "revoke"], 2, "ID"),
        (["join"], 2, "shoal up"),
        (["join", "shoal://10.0.0.1:7071/abc"], 2, "cut off"),
        (["join", "--name", "Not A Name"], 2, "cannot be the name"),
        (["model", "pull", "x", "-o", "/"], 2, "is a directory"),
        (["model", "follow", "x", "-o", "/"], 2, "is a directory"),
        (["model", "follow", "x", "-o", "no/such/place"], 2, "there is no directory"),
        (["model", "follow", "x", "--every", "often"], 2, "such as 10s, 5m or 1h"),
        (["model", "follow", "x", "--every", "0.1s"], 2, "too often"),
        (["model", "follow", "x"], 3, "shoal up"),
        (["model", "pull", "x", "--version", "3", "--newest"], 2, "two different models"),
        (["model", "rollback", "x", "--until-better", "95"], 2, "write 0.95 for 95 %"),
        (["model", "versions", "x"], 3, "shoal up"),
        (["train", "x", "--endless", "--epochs", "3"], 2, "--epochs ends it"),
        (["train", "x", "--budget-s", "-1"], 2, "budget_s is a number from 0"),
        (["train", "x", "--plan", "share_labels=1"], 2, "share_labels is true or false"),
        (["join", "--data", "no/such/folder"], 2, "there is no such folder"),
        (["service", "install", "cellar"], 2, "manager"),
        (["service", "install", "manager", "--", "--prot", "7"], 2, "--prot"),
        (["service", "install", "manager", "--", "--home", "/x"], 2, "belongs before"),
        (["service", "install", "manager", "--rootless", "--dry-run"], 2, "never is root"),
        (["service", "install", "agent", "--", "shoal://10.0.0.1:7071/abc"], 2, "--line-file"),
        (["up", "--disk-quota", "much"], 2, "such as 500MB or 20GB"),
        (["jobs", "rm", "x"], 3, "shoal up"),
        (["nodes", "forget", "x"], 3, "shoal up"),
        (["gc"], 3, "shoal up"),
        (["backup", "copy.tar"], 2, "no cluster is managed from"),
        (["backup", "/"], 2, "is a directory"),
        (["restore", "no/such/file"], 2, "there is no file"),
        (["doctor", "--line", "nonsense"], 2, "shoal up"),
    ],
)
def test_errors_are_one_clear_line(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("shoal: ")
    assert len(printed.err.splitlines()) == 1
    assert words in printed.err


def test_debug_shows_where_and_may_stand_anywhere() -> None:
    with pytest.raises(NoCluster):
        main.run(["status", "--debug"])


def test_debug_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DEBUG", "1")
    with pytest.raises(NoCluster):
        main.run(["status"])


def test_the_process_ends_with_the_code(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "shoal.cli.main", "status", "--home", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == Exit.UNREACHABLE
    assert "Traceback" not in ended.stderr


def test_doctor_prints_json_by_its_schema(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main.run(["doctor", "--json", "--home", str(tmp_path)])
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"state", "shoal", "python", "machine", "checks"}
    for check in told["checks"]:
        assert set(check) == {"check", "state", "found", "do"}
        assert check["state"] in ("ok", "warn", "fail")
        assert check["state"] == "ok" or check["do"]
    assert code == (Exit.UNFIT if told["state"] == "fail" else Exit.OK)
    names = [check["check"] for check in told["checks"]]
    for name in ("python", "packages", "cpu", "torch", "memory", "disk (home)", "clock", "port 7070", "port 7071"):
        assert name in names


def test_doctor_fails_where_the_manager_cannot_be_reached(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = JoinCode(host="127.0.0.1", port=2, ca_sha256=b"x" * 32, secret=new_secret())
    assert main.run(["doctor", "--json", "--home", str(tmp_path), "--line", str(line)]) == Exit.UNFIT
    told = {check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert told["reach 127.0.0.1:2"]["state"] == "fail"
    assert "nothing listens" in told["reach 127.0.0.1:2"]["found"]


# What a person means.


def test_overrides_hold_only_what_was_typed() -> None:
    nothing: dict[str, float | None] = {"accuracy": None, "epochs": None, "seconds": None}
    none_typed: dict[str, float | None] = {"batch_size": None, "learning_rate": None, "momentum": None}
    assert train.overrides(workers="", until=nothing, numbers=none_typed, pairs=()) == {}
    typed = train.overrides(
        workers="2:8",
        until=nothing | {"accuracy": 0.98, "seconds": 90.0},
        numbers=none_typed | {"batch_size": 32},
        pairs=("learning_rate=1", "pace=sync"),
    )
    assert typed == {
        "workers_min": 2,
        "workers_max": 8,
        "batch_size": 32,
        "learning_rate": 1.0,
        "pace": "sync",
        "until": Until(accuracy=0.98, seconds=90.0),
    }
    assert Plan(**typed).workers_max == 8
    paced = train.overrides(workers="", until=nothing, numbers={"pace": "async"}, pairs=("buffer=4", "staleness=none"))
    assert paced == {"pace": "async", "buffer": 4, "staleness": "none"}
    assert train.overrides(workers="", until=nothing, numbers={"work": "fixed"}, pairs=()) == {"work": "fixed"}
    # What they need may be in the task's own plan.
    for pair in ("local_epochs=5", "sampling=by_examples"):
        assert len(train.overrides(workers="", until=nothing, numbers=none_typed, pairs=(pair,))) == 1
    with pytest.raises(Misuse, match="there is: leased, fixed"):
        train.overrides(workers="", until=nothing, numbers={"work": "stolen"}, pairs=())
    shaped: dict[str, float | str | None] = {"topology": "tree", "aggregators": 3, "pace": "auto"}
    assert train.overrides(workers="", until=nothing, numbers=shaped, pairs=()) == shaped
    with pytest.raises(Misuse, match="there is: sync, buffered, async, auto"):
        train.overrides(workers="", until=nothing, numbers={"pace": "hasty"}, pairs=())


def test_a_job_may_go_on_until_it_is_stopped() -> None:
    ends = train.ends_typed(until_accuracy=None, epochs=None, minutes=None, endless=True)
    assert train.overrides(workers="", until=ends, numbers={}, pairs=()) == {"until": Until(endless=True)}
    none = train.ends_typed(until_accuracy=None, epochs=None, minutes=None, endless=False)
    assert train.overrides(workers="", until=none, numbers={}, pairs=()) == {}


def test_what_the_task_may_say_itself_need_not_be_typed() -> None:
    """A task whose own plan has local data is given a budget: that its data are local is not repeated."""
    sized: dict[str, float | str | None] = {"work": "sized", "budget_s": 3.0}
    assert train.overrides(workers="", until={}, numbers=sized, pairs=()) == sized
    assert train.overrides(workers="", until={}, numbers={"work": "sized"}, pairs=()) == {"work": "sized"}
    assert train.overrides(workers="", until={}, numbers={}, pairs=("staleness=similar",)) == {"staleness": "similar"}
    assert train.overrides(workers="", until={}, numbers={"budget_s": 3.0}, pairs=()) == {"budget_s": 3.0}
    assert train.overrides(workers="", until={}, numbers={}, pairs=("requests_per_s=9",)) == {"requests_per_s": 9.0}
    with pytest.raises(Misuse, match=r"budget_s has no effect unless work = 'sized'. Set work = 'sized'"):
        train.overrides(workers="", until={}, numbers={"budget_s": 3.0, "work": "leased"}, pairs=())
    assert train.overrides(workers="", until={}, numbers=sized, pairs=("data=shared",)) == sized | {"data": "shared"}
    with pytest.raises(Misuse, match="needs a budget"):
        train.overrides(workers="", until={}, numbers={"work": "sized", "budget_s": 0.0}, pairs=())


@pytest.mark.parametrize(
    "pair", ["until=5", "seed=1.5", "seed=true", "batch_size=x", "batch_size=0", "pace=1", "=1", "x"]
)
def test_plan_values_of_the_wrong_kind(pair: str) -> None:
    with pytest.raises(Misuse):
        train.overrides(workers="", until={}, numbers={}, pairs=(pair,))


def test_task_arguments_are_json_or_text() -> None:
    pairs = ("width=64", "deep=true", "sizes=[1,2]", "name=lenet", 'quoted="7"', "empty=", "a=b=c")
    assert train.pairs_of(pairs, option="--set") == {
        "width": 64,
        "deep": True,
        "sizes": [1, 2],
        "name": "lenet",
        "quoted": "7",
        "empty": "",
        "a": "b=c",
    }
    for wrong in (("x=NaN",), ("a=1", "a=2"), ("no-identifier=1",)):
        with pytest.raises(Misuse):
            train.pairs_of(wrong, option="--set")


def test_which_job_is_meant() -> None:
    old = job(job="mnist-aaaa", state=JobState.FINISHED)
    running = job(job="mnist-ab00", state=JobState.RUNNING)
    newest = job(job="pets-cccc", name="pets", state=JobState.STOPPED)
    told = status(old, running, newest)
    assert pick_job(told, "").job == "mnist-ab00"
    assert pick_job(status(old, newest), "").job == "pets-cccc"
    assert pick_job(told, "mnist-aaaa").job == "mnist-aaaa"
    assert pick_job(told, "mnist-ab").job == "mnist-ab00"
    assert pick_job(told, "pets").job == "pets-cccc"
    with pytest.raises(Misuse, match=r"several jobs: mnist-ab00 .*mnist-aaaa"):
        pick_job(told, "mnist-a")
    with pytest.raises(Misuse, match="there is no job 'zebra'; there is pets-cccc"):
        pick_job(told, "zebra")
    with pytest.raises(Misuse, match="no jobs yet"):
        pick_job(Status(cluster="home", manager="manager"), "")


def test_the_newest_of_a_name_is_meant() -> None:
    assert pick_job(status(job(job="x-1"), job(job="x-2")), "mnist").job == "x-2"


@pytest.mark.parametrize(
    ("host", "name"),
    [("Attic_Pi4.local", "attic-pi4"), ("---", "device"), ("", "device"), ("ü" * 9, "device"), ("A" * 99, "a" * 63)],
)
def test_a_host_name_names_the_device(host: str, name: str) -> None:
    assert join.name_from(host) == name


def test_a_line_of_the_same_cluster_moves_the_manager_and_another_is_refused(tmp_path: Path) -> None:
    home, other = (Authority.create(tmp_path / name, name) for name in ("home", "other"))
    member = Enrolled(
        identity=home.identity(node="attic", role="node"), manager_node="manager", manager_endpoint="10.0.0.1:7070"
    )
    line = JoinCode(host="10.0.0.9", port=7071, ca_sha256=home.fingerprint, secret=new_secret())
    assert join.moved(member, line, tmp_path).manager_endpoint == "10.0.0.9:7070"
    wrong = JoinCode(host="10.0.0.9", port=7071, ca_sha256=other.fingerprint, secret=new_secret())
    with pytest.raises(Misuse, match="belongs to cluster home"):
        join.moved(member, wrong, tmp_path)


def test_a_member_keeps_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority.create(tmp_path / "authority", "home")
    member = Enrolled(
        identity=authority.identity(node="attic", role="node"), manager_node="manager", manager_endpoint="10.0.0.1:7070"
    )
    member.save(tmp_path / "node")
    assert main.run(["join", "--name", "cellar", "--home", str(tmp_path)]) == Exit.MISUSE
    assert "this device is attic already" in capsys.readouterr().err


def test_where_a_device_keeps_its_examples_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, command: became.append(command))
    monkeypatch.delenv(LOCAL_VARIABLE, raising=False)
    home, own = tmp_path / "home", tmp_path / "own"
    own.mkdir()
    authority = Authority.create(tmp_path / "authority", "home")
    Enrolled(
        identity=authority.identity(node="attic", role="node"), manager_node="manager", manager_endpoint="10.0.0.1:7070"
    ).save(home / "node")
    assert main.run(["join", "--home", str(home)]) == Exit.OK
    assert own_data.folder_of(Paths(home)) is None
    monkeypatch.chdir(tmp_path)
    assert main.run(["join", "--home", str(home), "--data", "own"]) == Exit.OK
    assert main.run(["join", "--home", str(home)]) == Exit.OK
    assert main.run(["join", "--home", str(home), "--lead-port", "7080"]) == Exit.OK
    assert [command[3:] for command in became] == [
        ["--home", str(home)],
        ["--home", str(home), "--data", str(own)],
        ["--home", str(home)],
        ["--home", str(home), "--lead-port", "7080"],
    ]
    assert own_data.folder_of(Paths(home)) == own
    # A certificate that is renewed is written beside it.
    Enrolled.load(home / "node").save(home / "node")
    assert own_data.remembered(Paths(home)) == own


def test_a_devices_part_of_a_set_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, command: became.append(command))
    monkeypatch.delenv(PART_VARIABLE, raising=False)
    home = tmp_path / "home"
    authority = Authority.create(tmp_path / "authority", "home")
    Enrolled(
        identity=authority.identity(node="attic", role="node"), manager_node="manager", manager_endpoint="10.0.0.1:7070"
    ).save(home / "node")
    assert main.run(["join", "--home", str(home), "--part", "17/1000"]) == Exit.OK
    assert main.run(["join", "--home", str(home)]) == Exit.OK
    assert [command[3:] for command in became] == [["--home", str(home), "--part", "17/1000"], ["--home", str(home)]]
    assert own_share.part_of(Paths(home)) == "17/1000"
    for wrong, why in ((["--part", "0/5"], "is not a part"), (["--part", "18/17"], "is not a part")):
        assert main.run(["join", "--home", str(home), *wrong]) == Exit.MISUSE
        assert why in capsys.readouterr().err
    assert main.run(["join", "--home", str(home), "--hub", "--part", "1/2"]) == Exit.MISUSE
    assert "a hub trains nothing" in capsys.readouterr().err
    assert own_share.part_of(Paths(home)) == "17/1000"
    assert len(became) == 2


def test_an_agent_gets_every_option_of_its_process_that_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, command: became.append(command))
    monkeypatch.chdir(tmp_path)
    authority = Authority.create(tmp_path / "authority", "home")
    Enrolled(
        identity=authority.identity(node="attic", role="node"), manager_node="manager", manager_endpoint="10.0.0.1:7070"
    ).save(tmp_path / "home" / "node")
    for name in ("own", "stick"):
        (tmp_path / name).mkdir()
    (tmp_path / "token").write_text("a-token-of-sixteen-or-more-characters")
    (tmp_path / "token").chmod(0o600)
    words = (
        *("join", "--home", "home", "--quiet", "--log-format", "json", "--lend", "--files", "stick", "--data", "own"),
        *("--part", "3/9", "--lead-port", "7080", "--cores", "2", "--hours", "22-6", "--max-temperature", "71.5"),
        *("--metrics", "127.0.0.1:9100", "--metrics-token-file", "token"),
    )
    assert main.run([*words]) == Exit.OK
    assert main.run(["join", "--home", "home", "--hub", "--hub-mbps", "16"]) == Exit.OK
    home = tmp_path / "home"
    assert [command[1:3] for command in became] == [["-m", "shoal.runtime.agent_main"]] * 2
    assert [AgentOptions.parse(command[3:]) for command in became] == [
        AgentOptions(
            home=home,
            quiet=True,
            log_format="json",
            lend=True,
            files=tmp_path / "stick",
            data=tmp_path / "own",
            part="3/9",
            lead_port=7080,
            cores=2,
            hours="22-6",
            max_temperature_c=71.5,
            metrics="127.0.0.1:9100",
            metrics_token_file=tmp_path / "token",
        ),
        AgentOptions(home=home, hub=True, hub_mbps=16.0),
    ]


def test_what_a_devices_owner_allows_private_jobs_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.execv", lambda program, command: None)
    authority = Authority.create(tmp_path / "authority", "home")
    Enrolled(
        identity=authority.identity(node="attic", role="node"), manager_node="manager", manager_endpoint="10.0.0.1:7070"
    ).save(tmp_path / "node")
    assert main.run(["join", "--home", str(tmp_path), "--max-epsilon", "-3"]) == Exit.MISUSE
    assert "a number above 0" in capsys.readouterr().err
    assert main.run(["join", "--home", str(tmp_path), "--max-epsilon", "9"]) == Exit.OK
    assert main.run(["join", "--home", str(tmp_path)]) == Exit.OK
    assert limit_of(Paths(tmp_path).node) == 9.0


def test_statuses_become_json() -> None:
    plain = to_plain(status(job(progress=None)))
    assert json.loads(json.dumps(plain, allow_nan=False))["jobs"][0]["plan"]["until"] == {
        "accuracy": 0.98,
        "epochs": 5,
        "seconds": None,
        "endless": False,
        "goals": [],
        "plateaus": [],
    }
    assert to_plain({"x": float("inf")}) == {"x": None}
    assert plain["jobs"][0]["job"] == JOB


def test_a_line_with_another_port_moves_the_port_for_work_too(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "home", "home")
    member = Enrolled(
        identity=authority.identity(node="attic", role="node"),
        manager_node="manager",
        manager_endpoint="10.0.0.1:7070",
        enrol_endpoint="10.0.0.1:7071",
    )
    line = JoinCode(host="attic.lan", port=9001, ca_sha256=authority.fingerprint, secret=new_secret())
    told = join.moved(member, line, tmp_path)
    assert (told.manager_endpoint, told.enrol_endpoint) == ("attic.lan:9000", "attic.lan:9001")


def test_a_manager_that_made_no_line_says_how_to_make_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready = ManagerReady(
        cluster="lab", endpoint="attic.lan:7070", join_line="", port=7070, enrol_port=7071, resumed_jobs=()
    )
    up._announce(ready, ManagerOptions(home=tmp_path, devices=20))
    printed = capsys.readouterr().out
    assert f"shoal token create --uses 20 --home {tmp_path}" in printed
    assert "shoal://" not in printed
    assert "forward" not in printed
    line = dataclasses.replace(ready, join_line="shoal://attic.lan:9001/x", endpoint="attic.lan:9000", warning="Beware")
    up._announce(line, ManagerOptions(home=tmp_path, devices=1, token_hours=2.0))
    printed = capsys.readouterr().out
    assert "shoal join shoal://attic.lan:9001/x" in printed
    assert "Warning: Beware" in printed
    assert "devices dial 9000 and 9001: forward them to 7070 and 7071 here" in printed


@pytest.mark.parametrize("words", [[], ["flock"], ["token"], ["model"]], ids=" ".join)
def test_nothing_typed_asks_for_the_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(words) == Exit.OK
    told = capsys.readouterr()
    assert "Usage: shoal" in told.out
    assert told.err == ""


def test_a_mistyped_command_is_told_with_one_mark_of_punctuation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["trian"]) == Exit.MISUSE
    assert capsys.readouterr().err == ("shoal: No such command 'trian'. Did you mean 'train'? See: shoal --help\n")
    assert main.run(["status", "a", "b"]) == Exit.MISUSE
    assert ". See: shoal status --help" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--version"], ["-V"], ["version"]], ids=" ".join)
def test_the_version_is_told_as_people_ask_for_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(words) == Exit.OK
    assert capsys.readouterr().out == f"shoal {__version__}\n"


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["up", "--host", "127.0.0.1", "--port", str(port), "--home", str(tmp_path)]
        command = [sys.executable, "-m", "shoal.cli.main", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == Exit.MISUSE
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"shoal: port {port} on 127.0.0.1 is taken by another program")


def test_a_drain_that_leaves_a_job_short_of_workers_is_warned_of() -> None:
    two = job(plan=Plan(workers_min=2))
    ours = [node(name, job=JOB, facts=Facts(torch="2.13")) for name in ("pi1", "pi2")]
    told = nodes.shortage(status(two, nodes=tuple(ours)), "pi2")
    assert told == f"{JOB} has 1 of at least 2 workers without it: it waits until there are more"
    free = node("pi3", facts=Facts(torch="2.13"))
    assert nodes.shortage(status(two, nodes=(*ours, free)), "pi2") == "", "another takes its place"
    for other in (
        node("pi3"),
        node("pi3", facts=free.facts, state="lost"),
        node("pi3", facts=free.facts, standing="drained"),
    ):
        assert nodes.shortage(status(two, nodes=(*ours, other)), "pi2") == told
    assert nodes.shortage(status(job(plan=Plan(workers_min=1)), nodes=tuple(ours)), "pi2") == ""
    assert nodes.shortage(status(two, nodes=tuple(ours)), "pi9") == ""
