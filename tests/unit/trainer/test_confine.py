"""What a process takes away from itself: the plan as values, the act in processes of its own."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import Misuse
from shoal.trainer.confine import (
    MEMORY_FLOOR_BYTES,
    Groups,
    Limits,
    device_memory_bytes,
    says_no_memory,
    too_much_memory,
    user_id,
)
from shoal.trainer.launch import LaunchPlan

LINUX = sys.platform == "linux"
ROOT = os.geteuid() == 0


# The plan -----------------------------------------------------------------------------------------


def test_the_default_is_a_share_of_the_device() -> None:
    limits = Limits.from_environment({}, device_bytes=4_000_000_000)
    assert limits.memory_bytes == 3_200_000_000
    assert (limits.user, limits.network, limits.root) == ("nobody", False, False)
    assert Limits.from_environment({"SHOAL_TRAINER_ROOT": "yes"}, device_bytes=0).root


def test_a_small_device_is_not_refused_what_may_fit() -> None:
    assert Limits.from_environment({}, device_bytes=512 << 20).memory_bytes == MEMORY_FLOOR_BYTES


def test_a_device_of_unknown_memory_has_no_limit() -> None:
    assert Limits.from_environment({}, device_bytes=0).memory_bytes == 0


def test_the_owner_chooses() -> None:
    chosen = {"SHOAL_TRAINER_USER": "learner", "SHOAL_TRAINER_MEMORY_MB": "900", "SHOAL_TRAINER_NETWORK": "on"}
    limits = Limits.from_environment(chosen, device_bytes=4_000_000_000)
    assert (limits.user, limits.memory_bytes, limits.network) == ("learner", 900_000_000, True)
    unlimited = Limits.from_environment({"SHOAL_TRAINER_MEMORY_MB": "0"}, device_bytes=4_000_000_000)
    assert unlimited.memory_bytes == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"SHOAL_TRAINER_MEMORY_MB": "lots"},
        {"SHOAL_TRAINER_MEMORY_MB": "-1"},
        {"SHOAL_TRAINER_NETWORK": "yes"},
        {"SHOAL_TRAINER_ROOT": "on"},
    ],
)
def test_a_choice_that_is_none_says_what_to_write(wrong: dict[str, str]) -> None:
    with pytest.raises(Misuse, match="say "):
        Limits.from_environment(wrong, device_bytes=1)


def test_limits_are_not_negative() -> None:
    with pytest.raises(Misuse, match="at least 0"):
        Limits(memory_bytes=-1)


def test_a_job_can_only_lower_the_memory() -> None:
    limits = Limits(memory_bytes=1000)
    assert limits.narrowed(memory_bytes=500, nice=3) == Limits(memory_bytes=500, nice=3)
    assert limits.narrowed(memory_bytes=2000, nice=0) == limits
    assert limits.narrowed(memory_bytes=0, nice=0) == limits
    assert Limits().narrowed(memory_bytes=500, nice=0).memory_bytes == 500


def test_code_of_ours_keeps_the_user_and_the_network_and_all_other_limits() -> None:
    limits = Limits(memory_bytes=1000, files_max=7)
    assert limits.for_own_code() == Limits(memory_bytes=1000, files_max=7, network=True, user="")


def test_a_plan_crosses_as_text() -> None:
    groups = Groups(folders=("/g/a", "/g/b"), memory=True, why_not="no pids")
    plan = LaunchPlan(
        limits=Limits(memory_bytes=5), work="/w", needs=("/a",), doors=(("/data/x", "/w/x"),), groups=groups
    )
    assert LaunchPlan.from_json(plan.to_json()) == plan


def test_the_device_has_some_memory() -> None:
    assert device_memory_bytes() > 100_000_000


def test_users_are_found_by_name_and_by_number() -> None:
    assert user_id("root") == user_id("0") == (0, 0)
    assert user_id("no-such-user") is user_id("4000000000") is None


@pytest.mark.parametrize(
    ("text", "is_memory"),
    [
        ("MemoryError", True),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory", True),
        ("terminate called after throwing an instance of 'std::bad_alloc'", True),
        ("_ArrayMemoryError: Unable to allocate 8.00 GiB for an array", True),
        ("ValueError: two is too few", False),
    ],
)
def test_a_refusal_of_memory_is_known_by_its_words(text: str, is_memory: bool) -> None:
    assert says_no_memory(text) is is_memory


def test_the_reason_names_the_limit() -> None:
    assert too_much_memory(3_200_000_000) == "the task wanted more than the 3,200 MB it may use"


# The act ------------------------------------------------------------------------------------------


def act(code: str, *, before: str = "", needs: tuple[str, ...] = (), **limits: object) -> dict[str, Any]:
    """Confine a fresh process, run code in it that fills ``told``, and give that back with the words."""
    program = f"""
import json, os, resource, sys, threading
from shoal.trainer import confine
{before}
told = {{}}
told["words"] = confine.confine(confine.Limits(**{limits!r}), {needs!r})
{code}
print(json.dumps(told))
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_no_core_is_written_and_files_are_bounded() -> None:
    told = act(
        """
for name in ("CORE", "FSIZE", "NOFILE"):
    told[name] = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
try:
    descriptor = os.memfd_create("big") if hasattr(os, "memfd_create") else -1
    if descriptor >= 0:
        os.ftruncate(descriptor, 5_000_001)
    told["wrote"] = True
except OSError as error:
    told["wrote"] = error.strerror
""",
        user="",
        file_max_bytes=5_000_000,
        files_max=100,
    )
    assert (told["CORE"], told["FSIZE"], told["NOFILE"]) == (0, 5_000_000, 100)
    assert "files up to 5 MB" in told["words"]
    if LINUX:
        assert told["wrote"] == "File too large"


@pytest.mark.skipif(not LINUX, reason="only Linux limits memory")
def test_memory_ends_at_the_limit_and_the_reserve_is_there_to_say_so() -> None:
    told = act(
        """
def grows(count):
    try:
        bytearray(count)
        return True
    except MemoryError:
        return False
reserve = confine.Reserve()
told["small"], told["large"] = grows(50_000_000), grows(200_000_000)
hoard = []
try:
    while True:
        hoard.append(bytearray(1_000_000))
except MemoryError:
    pass
told["before"] = grows(16_000_000)
reserve.open()
told["reserve"] = grows(16_000_000)
reserve.shut()
told["after"] = grows(16_000_000)
told["limit"] = reserve.task_bytes
""",
        user="",
        memory_bytes=200_000_000,
    )
    assert (told["small"], told["large"]) == (True, False)
    assert (told["before"], told["reserve"], told["after"]) == (False, True, False)
    assert told["limit"] == 200_000_000
    # Without a control group the words say what the limit does not cover.
    assert "memory 200 MB per process (shared memory and files in memory do not count)" in told["words"]


def test_a_lower_limit_that_is_there_is_not_raised() -> None:
    told = act(
        'told["FSIZE"] = resource.getrlimit(resource.RLIMIT_FSIZE)',
        before="resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 4_000_000))",
        user="",
        file_max_bytes=5_000_000,
    )
    assert told["FSIZE"] == [3_000_000, 4_000_000]
    assert "files up to 3 MB" in told["words"]


@pytest.mark.skipif(not LINUX, reason="of Linux")
def test_no_new_privileges_and_first_to_be_killed() -> None:
    told = act(
        """
told["status"] = open("/proc/self/status").read()
told["oom"] = int(open("/proc/self/oom_score_adj").read())
""",
        user="",
    )
    assert "NoNewPrivs:\t1" in str(told["status"])
    assert told["oom"] == 500
    assert "no new privileges" in told["words"]


def test_niceness_is_added() -> None:
    told = act('told["nice"] = os.nice(0)', user="", nice=3)
    assert told["nice"] == min(os.nice(0) + 3, 19)


@pytest.mark.skipif(ROOT, reason="root can do more")
def test_without_root_the_words_say_what_is_not_in_force() -> None:
    told = act("")
    assert "processes not limited" in told["words"]
    assert any(str(word).startswith("network not cut") for word in told["words"])


#: What a task tries that was left root's rights.
TRIES = """
def refused(call, *arguments):
    try:
        call(*arguments)
        return ""
    except OSError as error:
        return error.strerror
import ctypes
class Library:
    def __getattr__(self, name):
        def called(*arguments):
            library = ctypes.CDLL(None, use_errno=True)
            if getattr(library, name)(*arguments):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return called
c = Library()
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
told["capabilities"] = [int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")]
told["setns"] = refused(lambda: c.setns(os.open(f"/proc/{os.getppid()}/ns/net", os.O_RDONLY), 0))
told["realtime"] = refused(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
told["mount"] = refused(lambda: c.mount(b"tmpfs", b"/mnt", b"tmpfs", 0, None))
told["chroot"] = refused(os.chroot, "/")
"""
DENIED = "Operation not permitted"


@pytest.mark.skipif(not (LINUX and ROOT), reason="takes root on Linux")
class TestAsRoot:
    IDS = "told['ids'] = [os.getresuid(), os.getresgid(), os.getgroups()]"
    GROUPS = "os.setgroups([0, 4])"

    @pytest.fixture
    def closed(self, tmp_path: Path) -> str:
        folder = tmp_path / "closed"
        folder.mkdir(mode=0o700)
        return str(folder)

    def test_what_the_other_user_cannot_read_is_named_and_no_task_runs(self, closed: str) -> None:
        code = f"""
import json, os, sys
from shoal.trainer import confine
try:
    confine.confine(confine.Limits(), ({closed!r},))
except confine.Unconfined as error:
    print(error)
"""
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.startswith(f"a task does not run as root, and nobody cannot read {closed}. Install Python")
        assert "SHOAL_TRAINER_ROOT=yes" in done.stdout

    def test_root_by_permission_has_no_capabilities(self, closed: str) -> None:
        told = act(self.IDS + TRIES, before=self.GROUPS, needs=(closed,), root=True)
        assert told["ids"] == [[0, 0, 0], [0, 0, 0], [0, 4]]
        said = f"user root without capabilities (nobody cannot read {closed}): it can read and change root's files"
        assert any(str(word).startswith(said) for word in told["words"])
        assert told["capabilities"] == [0] * 5
        assert told["setns"] in (DENIED, "Permission denied")
        assert [told[name] for name in ("realtime", "mount", "chroot")] == [DENIED] * 3
        assert "processes not limited" in told["words"]

    def test_the_other_user_is_for_good(self) -> None:
        code = f"""
{self.IDS}
{TRIES}
told["processes"] = resource.getrlimit(resource.RLIMIT_NPROC)
told["back"] = refused(os.setuid, 0)
"""
        told = act(code, before=self.GROUPS, processes_max=99)
        user, group = user_id("nobody") or (0, 0)
        assert told["ids"] == [[user] * 3, [group] * 3, []]
        assert told["capabilities"] == [0] * 5
        assert told["setns"] in (DENIED, "Permission denied")
        assert [told[name] for name in ("realtime", "mount", "chroot")] == [DENIED] * 3
        assert told["processes"] == [99, 99]
        assert told["back"] == DENIED
        assert {"user nobody", "99 processes"} <= set(told["words"])

    def test_python_in_a_closed_home_is_shown_and_what_lies_beside_it_is_not(self) -> None:
        # A home as root has one, with a folder that a trainer needs and a key beside it that anyone could read.
        with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
            python, key = Path(home, "tools", "python"), Path(home, "key")
            python.mkdir(parents=True)
            (python / "module.py").write_text("x = 1")
            key.write_text("secret")
            assert Path(home).stat().st_mode & 0o077 == 0
            told = act(
                f"""
told["module"] = open({str(python / "module.py")!r}).read()
told["home"] = os.path.exists({str(key)!r})
""",
                needs=(str(python),),
            )
            if any("no private /dev/shm" in str(word) for word in told["words"]):
                pytest.skip("no view of its own can be made here")
            assert told["words"][0] == "user nobody"
            assert (told["module"], told["home"]) == ("x = 1", False)
            # Only in its own view.
            assert key.read_text() == "secret"
            assert Path(home).stat().st_mode & 0o077 == 0

    def test_a_link_that_the_view_does_not_show_is_not_taken_for_missing(self, tmp_path: Path) -> None:
        # In a closed folder, to a folder in an open one.
        with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
            Path(place).chmod(0o755)
            link = tmp_path / "link"
            link.symlink_to(place)
            told = act("", needs=(str(link),), root=True)
            assert str(told["words"][0]).startswith(f"user root without capabilities (nobody cannot read {link})")

    def test_shared_memory_by_name_ends_with_the_process(self) -> None:
        name = f"/dev/shm/shoal-test-{os.getpid()}"  # noqa: S108
        told = act(f'open({name!r}, "w").write("x"); told["there"] = os.listdir("/dev/shm")')
        if "private /dev/shm" not in told["words"]:
            pytest.skip(f"not allowed here: {told['words']}")
        assert told["there"] == [Path(name).name]
        assert not Path(name).exists()

    def test_an_unknown_user_is_named(self) -> None:
        told = act('told["ids"] = os.getresuid()', user="no-such-user", root=True)
        assert told["ids"] == [0, 0, 0]
        assert told["words"][0].startswith("user root without capabilities (there is no user no-such-user)")

    def test_staying_is_a_choice_and_costs_the_capabilities(self) -> None:
        told = act(TRIES, user="root")
        assert told["words"][0].startswith("user root without capabilities (the owner's choice)")
        assert told["capabilities"] == [0] * 5

    def test_the_network_is_gone(self) -> None:
        told = act('told["routes"] = open("/proc/self/net/route").read()')
        if "no network" not in told["words"]:
            pytest.skip(f"not allowed here: {told['words']}")
        assert len(str(told["routes"]).splitlines()) <= 1

    def test_who_can_return_to_the_network_is_not_said_to_have_none(self) -> None:
        words = act("", user="")["words"]
        assert "no network" not in words
        assert any(str(word).startswith(("network cut, but root's", "network not cut")) for word in words)

    def test_a_thread_that_runs_already_would_be_a_way_around(self) -> None:
        started = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
        assert "network not cut (threads run already)" in act("", before=started, user="")["words"]
