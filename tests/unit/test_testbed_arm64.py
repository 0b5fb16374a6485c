"""The arm64 device of the testbed, as far as it is words: which wheels, which commands, which emulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testbed import arm64_root, emulator
from testbed.__main__ import main
from testbed.arm64 import Shown
from testbed.commands import NoNamespaces

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the testbed is a thing of Linux")

HANDLER = """enabled
interpreter /usr/bin/qemu-aarch64-static
flags: F
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""


def test_the_cores_requirements_are_those_of_the_project_file() -> None:
    names = [requirement.partition(">=")[0] for requirement in arm64_root.core_requirements()]
    assert {"cryptography", "grpcio", "numpy", "protobuf", "psutil"} <= set(names)
    assert "torch" not in names, "its wheel is chosen apart, without CUDA"


def test_only_wheels_for_aarch64_are_downloaded_and_torch_comes_alone() -> None:
    torch, others = arm64_root.download_commands(Path("/w"), ("numpy>=2.0",), torch="2.10.0")
    for command in (torch, others):
        platforms = [command[at + 1] for at, word in enumerate(command) if word == "--platform"]
        assert platforms
        assert all(name.endswith("aarch64") for name in platforms)
        assert "--only-binary=:all:" in command
        assert command[command.index("--python-version") + 1] == "311"
    assert torch[-2:] == ["--no-deps", "torch==2.10.0"]
    assert "--no-deps" not in others
    assert "numpy>=2.0" in others
    assert not [word for word in others if "nvidia" in word or "cuda" in word or word.startswith("torch")]


def test_wheels_are_unpacked_without_a_registry() -> None:
    command = arm64_root.install_command([Path("/w/a-1-py3-none-any.whl")], Path("/r/opt/libraries"))
    assert {"--no-index", "--no-deps"} <= set(command)
    assert command[command.index("--target") + 1] == "/r/opt/libraries"
    assert command[-1] == "/w/a-1-py3-none-any.whl"


def test_debian_is_downloaded_for_arm64() -> None:
    command = arm64_root.debian_command(Path("/p"), mirror="http://mirror.example/debian")
    assert command[0] == "debootstrap"
    assert "--arch=arm64" in command
    assert command[-3:] == ["bookworm", "/p", "http://mirror.example/debian"]


def test_a_root_folder_is_used_again_only_for_the_same_content() -> None:
    name = arm64_root.root_name(("numpy>=2.0",), torch="2.10.0")
    assert name == arm64_root.root_name(("numpy>=2.0",), torch="2.10.0")
    assert name != arm64_root.root_name(("numpy>=2.1",), torch="2.10.0")
    assert name != arm64_root.root_name(("numpy>=2.0",), torch="2.9.1")


def test_a_whole_root_folder_is_not_made_again(tmp_path: Path) -> None:
    root = tmp_path / arm64_root.root_name(arm64_root.core_requirements(), torch="2.10.0")
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "hostname").write_bytes(b"x" * 2_000_000)
    told: list[str] = []
    assert arm64_root.made_root(tmp_path, torch="2.10.0", tell=told.append) == root
    assert told == [f"the root folder is there: {root}"]
    assert arm64_root.size_mb(root) == 2


def test_a_command_inside_reaches_chroot_as_it_was_given() -> None:
    """The script is run with a PATH of tools that only say what they were called with."""
    words = arm64_root.inside(Path("/a root"), "python3", "-c", "print('a b')", checkout=Path("/src"))
    script = words[words.index("-c") + 1]
    saying = 'mount() { echo "mount $*"; }; chroot() { printf "<%s>" "$@"; };'
    # A function cannot be exec'ed: the last word of the script is left out.
    told = subprocess.run(
        ["sh", "-c", saying + script.replace("exec chroot", "chroot"), *words[words.index("-c") + 2 :]],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    assert told[0] == "mount --bind /a root /a root", "first: / of a chroot must be a mount"
    assert told[-2] == "mount --bind -o ro /src /a root/opt/checkout"
    assert told[-1] == "</a root><python3><-c><print('a b')>"


def test_the_processor_to_emulate_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QEMU_CPU", raising=False)
    assert arm64_root.environment()["QEMU_CPU"] == "max"
    monkeypatch.setenv("QEMU_CPU", "cortex-a72")
    assert arm64_root.environment()["QEMU_CPU"] == "cortex-a72"


def test_a_failed_step_says_which_and_what_it_said() -> None:
    with pytest.raises(NoNamespaces, match=r"(?s)-c .*ended with code 3: no space"):
        arm64_root._do([sys.executable, "-c", "print('no space'); raise SystemExit(3)"])


def test_the_systems_handler_is_used_if_it_needs_nothing_in_the_root_folder() -> None:
    assert emulator.interpreter({"qemu-aarch64": HANDLER}) == "/usr/bin/qemu-aarch64-static"
    assert emulator.interpreter({"qemu-aarch64": HANDLER.replace("flags: F", "flags: OCF")}) is not None
    assert emulator.interpreter({"qemu-aarch64": HANDLER.replace("flags: F", "flags: ")}) is None
    assert emulator.interpreter({"qemu-aarch64": HANDLER.replace("enabled", "disabled")}) is None
    assert emulator.interpreter({"qemu-arm": HANDLER.replace("b700", "2800")}) is None
    assert emulator.interpreter({}) is None


def test_the_kernel_is_told_the_head_of_an_aarch64_program() -> None:
    name, kind, offset, magic, mask, program, flags = emulator.registration("/usr/bin/qemu").decode().split(":")[1:]
    assert (name, kind, offset, program, flags) == ("shoal-aarch64", "M", "", "/usr/bin/qemu", "F")
    assert len(magic) == len(mask) == 20 * len(r"\x00")
    assert magic.startswith(r"\x7f\x45\x4c\x46\x02\x01")
    assert magic.endswith(r"\xb7\x00")


def test_the_emulators_version_is_read() -> None:
    told = "qemu-aarch64 version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright (c) 2003-2022 Fabrice Bellard"
    assert emulator.version(told) == "qemu-aarch64 7.2.22"
    assert emulator.version("something else\n") == "something else"


def test_what_is_shown_has_the_keys_that_scripts_read() -> None:
    shown = Shown(
        joined=True,
        trained_versions=3,
        machine="aarch64",
        torch="2.10.0",
        join_s=1.0,
        first_version_s=2.0,
        job_s=3.0,
        state="finished",
        root_mb=900,
        emulator="qemu-aarch64 7.2.22",
    )
    assert {"joined", "trained_versions", "machine", "torch", "first_version_s", "root_mb", "emulator"} <= set(
        shown.as_json()
    )


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["arm64", "--help"])
    told = capsys.readouterr().out
    assert "--root DIR" in told
    assert "--within-s" in told
