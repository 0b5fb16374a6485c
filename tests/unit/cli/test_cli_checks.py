"""Doctor's checks: every way a device can be unfit is told, with what to do about it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import ssl
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from shoal.cli import checks, probes
from shoal.cli.checks import ClockFacts, CpuFacts, DiskFacts, OwnDataFacts, RunFacts, SharedMemoryFacts, TorchFacts
from shoal.cli.findings import Finding, fail, note, ok, report, warn, worst
from shoal.data.local import LOCAL_VARIABLE
from shoal.learning.privacy import Privacy
from shoal.runtime.paths import Paths
from shoal.runtime.privacy_accounts import PRIVACY_FOLDER, remember_limit
from shoal.runtime.privacy_ledger import PrivacyLedger

PI3 = CpuFacts(arch="aarch64", features=frozenset({"fp", "asimd", "crc32"}), cores=4)
PI5 = CpuFacts(arch="aarch64", features=frozenset({"fp", "asimd", "crc32", "atomics", "asimddp"}), cores=4)
NOW_S = 1_790_000_000.0
DAY_S = 86_400.0


def told(finding: Finding, state: str, *words: str) -> None:
    assert finding.state == state, finding
    for word in words:
        assert word in f"{finding.found} | {finding.do}", finding


def test_python() -> None:
    told(checks.check_python((3, 11, 7), bits=64), "ok", "3.11.7")
    told(checks.check_python((3, 10, 2), bits=64), "fail", "3.11 or newer")
    told(checks.check_python((3, 12, 0), bits=32), "warn", "64-bit")


def test_packages() -> None:
    told(checks.check_packages({}), "ok")
    told(checks.check_packages({"grpc": "ImportError: libatomic.so.1"}), "fail", "grpc", "libatomic", "pip install")


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (TorchFacts(version=""), "warn", ["not installed", "pip install 'torch>=2.11'"]),
        (TorchFacts(version="2.13.0+cpu"), "ok", ["2.13.0"]),
        (TorchFacts(version="2.11.0"), "ok", []),
        (TorchFacts(version="2.10.0"), "fail", ["SIGILL", "Raspberry Pi", "2.11"]),
        (TorchFacts(version="2.9.1"), "fail", ["CVE-2026-24747"]),
        (TorchFacts(version="1.13.1+cu117"), "fail", ["CVE-2026-24747"]),
        (TorchFacts(version="what?"), "fail", ["CVE-2026-24747"]),
        (TorchFacts(version="2.13.0+cu130", cuda="13.0"), "warn", ["gigabytes", "--index-url", "CPU index"]),
        (TorchFacts(version="2.13.0+cu130", cuda="13.0", has_gpu=True), "ok", []),
        (TorchFacts(version="2.13.0+cpu", has_gpu=True), "note", ["without CUDA", "NVIDIA GPU"]),
    ],
)
def test_torch_builds(facts: TorchFacts, state: str, words: list[str]) -> None:
    told(checks.check_torch(facts), state, *words)


@pytest.mark.parametrize(
    ("facts", "cpu", "state", "words"),
    [
        (RunFacts(exit_code=0, seconds=2.0), PI3, "ok", ["2.0 s"]),
        (RunFacts(exit_code=-signal.SIGILL), PI3, "fail", ["SIGILL", "lacks atomics, asimddp", "2.11"]),
        (RunFacts(exit_code=-signal.SIGILL), PI5, "fail", ["SIGILL", "does not have"]),
        (RunFacts(exit_code=-signal.SIGKILL), PI3, "fail", ["memory", "swap"]),
        (RunFacts(exit_code=None, seconds=120.0), PI3, "fail", ["2 min 00 s"]),
        (RunFacts(exit_code=1, last_words="ImportError: libgomp.so.1"), PI3, "fail", ["libgomp.so.1"]),
        (RunFacts(exit_code=0, seconds=2.0, device="cuda"), PI5, "ok", ["on cuda in 2.0 s"]),
        (
            RunFacts(exit_code=1, last_words="--device cuda: PyTorch finds 0 CUDA devices here"),
            PI5,
            "fail",
            ["0 CUDA devices", "shoal join --device auto"],
        ),
    ],
)
def test_torch_in_a_process_of_its_own(facts: RunFacts, cpu: CpuFacts, state: str, words: list[str]) -> None:
    told(checks.check_torch_runs(facts, cpu=cpu), state, *words)


def test_a_missing_cpu_feature_is_a_warning() -> None:
    told(checks.check_cpu(PI3), "warn", "atomics", "asimddp")
    told(checks.check_cpu(PI5), "ok")
    told(checks.check_cpu(CpuFacts(arch="x86_64", features=frozenset({"sse4_2"}))), "warn", "avx2")
    told(checks.check_cpu(CpuFacts(arch="riscv64", features=frozenset({"rv64"}))), "ok")
    told(checks.check_cpu(CpuFacts(arch="x86_64")), "note", "does not list")


def test_ports_to_listen_on() -> None:
    told(checks.check_listen("free", port=7070, purpose="work"), "ok")
    told(checks.check_listen("busy", port=7070, purpose="work"), "fail", "another program", "--port")
    told(checks.check_listen("busy", port=7070, purpose="work", manager_runs=True), "ok", "own manager")
    other = checks.check_listen("busy", port=7070, purpose="work", other_cluster="lab", home="/root/.shoal")
    told(other, "warn", "cluster lab", "/root/.shoal", "--home DIR", "--port N")
    told(checks.check_listen("forbidden", port=80, purpose="work"), "fail", "1024")
    told(checks.check_listen("no-address", port=80, purpose="work"), "fail", "--host")


@pytest.mark.parametrize(
    ("outcome", "state", "words"),
    [
        ("open", "ok", ["3 ms"]),
        ("refused", "fail", ["nothing listens on port 7071", "shoal up"]),
        ("timeout", "fail", ["firewall", "open TCP port 7071"]),
        ("unknown-host", "fail", ["no such host"]),
        ("no-route", "fail", ["network"]),
        ("error", "fail", ["failed"]),
    ],
)
def test_a_refused_port_and_a_blocked_one_are_told_apart(outcome: checks.Reach, state: str, words: list[str]) -> None:
    finding = checks.check_reach(outcome, endpoint="10.0.0.2:7071", purpose="joining", seconds=0.003)
    told(finding, state, *words)


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (ClockFacts(now_s=NOW_S), "ok", ["2026-09-21"]),
        (ClockFacts(now_s=0.0), "warn", ["never set", "NTP"]),
        (ClockFacts(now_s=NOW_S, newest_file_s=NOW_S + 9000), "fail", ["2 h 30 min", "younger"]),
        (ClockFacts(now_s=NOW_S, newest_file_s=NOW_S + 60), "ok", []),
        (ClockFacts(now_s=NOW_S, refused="not-yet-valid"), "fail", ["not valid yet", "NTP"]),
        (ClockFacts(now_s=NOW_S, refused="expired"), "fail", ["is over", "renew"]),
        (ClockFacts(now_s=NOW_S, not_before_s=NOW_S + 5, not_after_s=NOW_S + 1e8), "fail", ["begins 2026-09-21"]),
        (ClockFacts(now_s=NOW_S, not_before_s=0.0, not_after_s=NOW_S - 5), "fail", ["ended 2026-09-21"]),
        (ClockFacts(now_s=NOW_S, not_before_s=0.0, not_after_s=NOW_S + DAY_S / 2), "warn", ["12 h"]),
        (ClockFacts(now_s=NOW_S, not_before_s=1.0, not_after_s=NOW_S + 99 * DAY_S), "ok", ["within"]),
        (ClockFacts(now_s=1e18), "ok", ["beyond the calendar"]),
    ],
)
def test_clocks(facts: ClockFacts, state: str, words: list[str]) -> None:
    told(checks.check_clock(facts), state, *words)


def test_membership() -> None:
    told(checks.check_membership(""), "ok")
    told(checks.check_membership("valid from 2030 and this clock says 2026"), "fail", "2030", "join again")


def test_disks() -> None:
    told(checks.check_disk(DiskFacts(name="home", path="/h", free_bytes=5 << 30)), "ok", "5.4 GB")
    told(checks.check_disk(DiskFacts(name="home", path="/h", free_bytes=500 << 20)), "warn")
    told(checks.check_disk(DiskFacts(name="home", path="/h", free_bytes=10 << 20)), "fail", "209.7 MB")
    full = DiskFacts(name="home", path="/h", error="No space left on device")
    told(checks.check_disk(full), "fail", "No space left", "--home")
    told(checks.check_disk(DiskFacts(name="home", path="/h", free_bytes=5 << 30, fsync_s=3.0)), "warn", "memory card")


def test_memory_and_limits() -> None:
    told(checks.check_memory(8 << 30, 4 << 30), "ok")
    told(checks.check_memory(8 << 30, 100 << 20), "warn", "swap")
    told(checks.check_memory(256 << 20, 200 << 20), "warn", "not train")
    told(checks.check_shared_memory(SharedMemoryFacts()), "ok", "not bounded")
    told(checks.check_shared_memory(SharedMemoryFacts(error="no room for 32 MB")), "fail", "no room")
    told(checks.check_shared_memory(SharedMemoryFacts(has_memfd=False, shm_free_bytes=1 << 20)), "warn", "--shm-size")
    told(checks.check_shared_memory(SharedMemoryFacts(has_memfd=False, shm_free_bytes=1 << 30)), "ok")
    told(checks.check_open_files(64), "fail", "ulimit")
    told(checks.check_open_files(256), "warn", "ulimit")
    told(checks.check_open_files(-1), "ok", "any number")
    told(checks.check_open_files(4096, devices=1024), "ok", "a manager here serves 1,024 devices at once")


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (OwnDataFacts(folder="/srv/own", user="pi", files=2), "ok", ["/srv/own", "pi can read 2 files"]),
        (OwnDataFacts(folder="/srv/own", user="pi", files=1), "ok", ["can read 1 file"]),
        (OwnDataFacts(folder="/srv/own", user="pi", files=1000, all_seen=False), "ok", ["1,000 or more files"]),
        (OwnDataFacts(folder="/srv/own", user="pi"), "ok", ["empty so far"]),
        (OwnDataFacts(folder="/srv/own", user="pi", is_folder=False), "fail", ["no folder /srv/own", "join --data"]),
        (
            OwnDataFacts(folder="/root/own", user="nobody", changes_user=True, closed="/root"),
            "warn",
            ["nobody cannot go into /root", "runs as root", "such as /srv", "chmod o+x /root"],
        ),
        (
            OwnDataFacts(folder="/srv/own", user="nobody", changes_user=True, unreadable="/srv/own/a.csv"),
            "fail",
            ["nobody", "cannot read /srv/own/a.csv", "chmod -R o+rX /srv/own"],
        ),
        (
            OwnDataFacts(folder="/srv/own", user="pi", closed="/srv"),
            "fail",
            ["pi", "cannot read /srv", "run the agent"],
        ),
    ],
)
def test_a_devices_own_examples(facts: OwnDataFacts, state: str, words: list[str]) -> None:
    told(checks.check_own_data(facts), state, *words)


def test_what_is_missing_and_not_needed_has_no_tick() -> None:
    told(checks.check_discovery(is_installed=True), "ok", "zeroconf is there")
    told(checks.check_discovery(is_installed=False), "note", "not installed", "pip install zeroconf")
    told(checks.check_families(has_ipv6=True), "ok", "IPv4 and IPv6")
    told(checks.check_families(has_ipv6=False), "note", "IPv4 only")


def test_a_proxy_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in probes.proxy_variables():
        monkeypatch.delenv(name)
    told(checks.check_proxies(probes.proxy_variables()), "ok", "no proxy")
    monkeypatch.setenv("https_proxy", "http://10.1.2.3:3128")
    monkeypatch.setenv("ALL_PROXY", "http://10.1.2.3:3128")
    monkeypatch.setenv("http_proxy", "")
    told(checks.check_proxies(probes.proxy_variables()), "note", "ALL_PROXY and https_proxy", "does not use a proxy")


def test_a_finding_that_is_not_ok_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="says what to do"):
        Finding(check="x", state="fail", found="broken")


def test_the_report_keeps_its_shape() -> None:
    found = report([ok("a", "fine"), warn("b", "so", "do"), fail("c", "bad", "do it")], shoal="0.1.0")
    assert json.loads(json.dumps(found)) == {
        "state": "fail",
        "shoal": "0.1.0",
        "checks": [
            {"check": "a", "state": "ok", "found": "fine", "do": ""},
            {"check": "b", "state": "warn", "found": "so", "do": "do"},
            {"check": "c", "state": "fail", "found": "bad", "do": "do it"},
        ],
    }
    assert worst([]) == "ok"
    assert worst([note("a", "is not installed, and few need it")]) == "ok"
    assert worst([note("a", "so"), warn("b", "so", "do")]) == "warn"


# The probes, on this machine.


def test_a_program_that_dies_of_an_illegal_instruction_is_survived() -> None:
    died = probes.run_torch("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    told(checks.check_torch_runs(died, cpu=PI3), "fail", "SIGILL")


def test_a_program_that_hangs_is_ended() -> None:
    began_s = time.monotonic()
    assert probes.run_torch("import time; time.sleep(60)", timeout_s=0.3).exit_code is None
    assert time.monotonic() - began_s < 10


def test_a_program_that_raises_leaves_its_last_words() -> None:
    assert probes.run_torch("raise ImportError('libgomp')").last_words == "ImportError: libgomp"


def test_cpu_features_are_those_of_every_core() -> None:
    big_little = "processor: 0\nFeatures\t: fp asimd atomics\n\nprocessor: 1\nFeatures\t: fp asimd\n"
    assert probes.cpu_features(big_little) == {"fp", "asimd"}
    assert probes.cpu_features("processor: 0\nflags\t\t: sse avx2\nvmx flags\t: ept\n") == {"sse", "avx2"}
    assert probes.cpu_features("") == frozenset()


def test_ports_are_probed() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        assert probes.listen("127.0.0.1", port) == "busy"
        assert probes.reach("127.0.0.1", port)[0] == "open"
    assert probes.listen("127.0.0.1", port) == "free"
    assert probes.reach("127.0.0.1", port)[0] == "refused"
    # 192.0.2.0/24 is for documentation: no machine has it.
    assert probes.listen("192.0.2.1", port) == "no-address"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TimeoutError(), "timeout"),
        (ConnectionRefusedError(), "refused"),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), "unknown-host"),
        (OSError(errno.EHOSTUNREACH, "no route"), "no-route"),
        (OSError(errno.EPIPE, "odd"), "error"),
    ],
)
def test_ways_not_to_connect(error: OSError, outcome: str) -> None:
    assert probes.reach_of(error) == outcome


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    assert probes.disk_facts("home", tmp_path / "not" / "yet").path == str(tmp_path)
    assert probes.disk_facts("home", tmp_path).error == ""
    assert probes.disk_facts("home", Path("/proc/1")).error


def test_facts_of_this_machine() -> None:
    total, free = probes.memory_bytes()
    assert total >= free > 0
    assert probes.missing_packages() == {}
    assert probes.shared_memory_facts().error == ""
    assert probes.bits() in (32, 64)
    assert probes.newest_file_s(Path("/nowhere")) > checks.OLDEST_SANE_S


@pytest.mark.parametrize(("made_days_ago", "state"), [(0, "ok"), (-30, "ok"), (400, "fail")])
def test_a_clock_that_is_off_is_seen_in_the_managers_certificate(
    made_days_ago: int, state: str, tmp_path: Path
) -> None:
    """A manager whose certificate was made in another time, as this device's clock sees it."""
    import asyncio

    from memory_tokens import MemoryTokens

    from shoal.identity.enrolment import EnrolmentServer
    from shoal.identity.identity import Authority

    made_s = time.time() - made_days_ago * DAY_S
    authority = Authority.create(tmp_path / "authority", "home", now_s=made_s)
    identity = authority.identity(node="manager", role="manager", now_s=made_s)

    async def probed() -> tuple[ClockFacts, bytes]:
        server = EnrolmentServer(authority, identity, MemoryTokens(), "127.0.0.1", 0, service_port=1)
        await server.start()
        try:
            pem = authority.certificate_pem.decode()
            address = ("127.0.0.1", server.port)
            facts = await asyncio.to_thread(probes.clock_facts, tmp_path, manager=address, ca_pem=pem)
            return facts, await asyncio.to_thread(probes.authority_of, *address)
        finally:
            await server.stop()

    facts, authority_der = asyncio.run(probed())
    told(checks.check_clock(facts), state)
    assert (facts.not_before_s is not None) == (state == "ok")
    assert authority_der == ssl.PEM_cert_to_DER_cert(authority.certificate_pem.decode())


# What private jobs have told.


def test_private_jobs_are_added_up(tmp_path: Path) -> None:
    assert probes.privacy_facts(tmp_path) is None
    promised = Privacy(epsilon=6.0, delta=1e-5, clip=0.5, devices=20, participations=1, apart=1, versions=4)
    for job in ("job-1", "job-2"):
        PrivacyLedger(Paths(tmp_path).node, job, promised).note(1, 1)

    def found() -> Finding:
        facts = probes.privacy_facts(tmp_path)
        assert facts is not None
        return checks.check_privacy(facts)

    told(found(), "ok", "2 private jobs spent an epsilon of 12 together, delta 2e-05", "--max-epsilon")
    remember_limit(Paths(tmp_path).node, 20)
    told(found(), "ok", "of 20 that its owner allows")
    remember_limit(Paths(tmp_path).node, 12)
    told(found(), "warn", "refuses private jobs from now on")
    (Paths(tmp_path).node / PRIVACY_FOLDER / "job-2.json").write_text("{}")
    told(found(), "fail", "job-2.json", "takes no part")


# A device's own examples.


def test_no_folder_no_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOCAL_VARIABLE, raising=False)
    assert probes.own_data_facts(tmp_path) is None


def test_what_can_be_read_is_counted(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "deep").mkdir(parents=True)
    assert probes.readable_in(own, user="me").files == 0
    for name in ("a", "b", "deep/c"):
        (own / name).touch()
    assert probes.readable_in(own, user="me") == OwnDataFacts(folder=str(own), user="me", files=3)
    few = probes.readable_in(own, user="me", files_max=2)
    assert (few.files, few.all_seen) == (2, False)
    assert not probes.readable_in(tmp_path / "nowhere", user="me").is_folder
    assert not probes.readable_in(own / "a", user="me").is_folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's trainer becomes another user")
def test_what_the_trainers_user_cannot_read_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not in the tests' own folder: that may lie where only its owner can go.
    own = Path(tempfile.mkdtemp(prefix="shoal-own-", dir="/var/tmp"))
    try:
        monkeypatch.setenv(LOCAL_VARIABLE, str(own))
        (own / "deep").mkdir()
        (own / "deep" / "a.csv").touch()
        before = os.geteuid(), os.getegid(), os.getgroups()

        def facts() -> OwnDataFacts:
            found = probes.own_data_facts(tmp_path)
            assert found is not None
            assert found.user == "nobody"
            assert found.changes_user
            return found

        own.chmod(0o700)
        assert facts().closed == str(own)
        own.chmod(0o755)
        assert facts().files == 1
        (own / "deep" / "a.csv").chmod(0o600)
        assert facts().unreadable == str(own / "deep" / "a.csv")
        (own / "deep").chmod(0o744)
        assert facts().unreadable == str(own / "deep")
        assert (os.geteuid(), os.getegid(), os.getgroups()) == before
    finally:
        shutil.rmtree(own)
