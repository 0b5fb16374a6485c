"""Shell completion: the script that a shell sources, and what it is answered."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(120)

SHOAL = f"{sys.executable} -m shoal.cli.main"


def _bash(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    # A second command keeps bash from becoming the first: the shell to complete for is the one that asks.
    return subprocess.run(
        ["bash", "-c", f"{script}; code=$?; exit $code"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_the_script_for_bash_is_one_that_bash_accepts() -> None:
    told = _bash(f"{SHOAL} --show-completion bash")
    assert told.returncode == 0, told.stderr
    assert "complete -o default -F _shoal_completion shoal" in told.stdout
    assert _bash(f"eval {shlex.quote(told.stdout)} && complete -p shoal").returncode == 0


@pytest.mark.parametrize(
    ("typed", "word", "offered"),
    [
        ("shoal jo", 1, {"join", "jobs"}),
        ("shoal service ", 2, {"install", "status", "uninstall"}),
        ("shoal backup --h", 2, {"--home", "--help"}),
    ],
)
def test_commands_and_options_are_completed(typed: str, word: int, offered: set[str]) -> None:
    told = _bash(SHOAL, _SHOAL_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(word))
    assert told.returncode == 0, told.stderr
    assert set(told.stdout.split()) == offered
