"""A newcomer's start, by the documents alone: from a clean virtual environment to a first own model on two agents.

python -m benchmarks.trial --json

Follows README's install block, then types what docs/start.md says of a project of one's own: ``project_s`` is all of
it, from nothing to the project's model, in ``project_commands`` inside an environment that was made and entered. Then
`docs/python.md`'s program with three workers. Counts what a person types: commands, and lines of Python that are not
blank, imports or class headings. The cache of the packages is as warm as it was before. ``project_processor_s`` is what
all of it took of the processors: on a busy machine the seconds are mostly waiting for one.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from testbed.results import finish, say

ROOT = Path(__file__).resolve().parent.parent
#: The build of torch that CI and development use; a user gets the newest.
TORCH = "torch==2.13.0"
WORKERS = 3
LONGEST_S = 600


def install_lines() -> list[str]:
    """The commands of README's first block that install Shoal, as a person types them."""
    block = _found(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"))
    lines = [line.split("  #")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line.startswith("pip install")]


def own_program() -> str:
    """The program that docs/python.md begins with, up to its first result, on three agents."""
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    program = _found(r"<!-- program:.*?-->\n```python\n(.*?)```", text)
    first = program.split("\nagain =")[0]
    return first.replace("workers=2", f"workers={WORKERS}")


def project_lines() -> list[str]:
    """The commands of docs/start.md that write a first project and train it."""
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    block = _found(r"```sh\n(shoal new .*?)```", text)
    return [line for line in block.splitlines() if not line.endswith("test_task.py")]


def train_project(directory: str, environment: dict[str, str]) -> None:
    """Type the commands of a first project as they stand, and check that they leave a model."""
    for line in project_lines():
        say(line)
        words = [f"{directory}/venv/bin/{word}" if at == 0 else word for at, word in enumerate(line.split())]
        subprocess.run(words, cwd=directory, env=environment, check=True, timeout=LONGEST_S, stdout=sys.stderr)
    if not (Path(directory) / "first" / "model.safetensors").exists():
        raise SystemExit("the project of docs/start.md left no model")


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text, flags=re.DOTALL)
    if found is None:
        raise SystemExit(f"the documents have no block like {pattern!r}")
    return found[1]


def run() -> dict[str, object]:
    commands, program = install_lines(), own_program()
    with tempfile.TemporaryDirectory(prefix="shoal-trial-") as directory:
        began_s = time.monotonic()
        _step([sys.executable, "-m", "venv", f"{directory}/venv"], "a clean virtual environment")
        python = f"{directory}/venv/bin/python"
        _step([python, "-m", "pip", "install", "-q", TORCH], f"pip install {TORCH}")
        _step([python, "-m", "pip", "install", "-q", str(ROOT)], " and ".join(commands) or "pip install .")
        installed_s, install_processor_s = time.monotonic() - began_s, _processor_s()
        environment = {**os.environ, "HOME": directory}
        train_project(directory, environment)
        project_s, project_processor_s = time.monotonic() - began_s, _processor_s()
        script = Path(directory) / "program.py"
        script.write_text(program, encoding="utf-8")
        done = subprocess.run(
            [python, script],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"the program of docs/python.md failed: {done.stderr[-2000:]}")
        say(done.stdout.strip())
        total_s = time.monotonic() - began_s
    typed = [line for line in program.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    return {
        "seconds": total_s,
        "install_s": installed_s,
        "install_processor_s": install_processor_s,
        "project_s": project_s,
        "project_processor_s": project_processor_s,
        "project_commands": len(commands) + len(project_lines()),
        "first_model_s": total_s - project_s,
        "workers": WORKERS,
        "commands_typed": 2 + len(commands),
        "lines_typed": len(typed),
        "finished": "finished" in done.stdout,
    }


def _processor_s() -> float:
    """Return the processor time of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _step(command: list[str], told: str) -> None:
    say(told)
    subprocess.run(command, check=True, timeout=LONGEST_S, stdout=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same: it takes as long as installing torch does")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    parser.parse_args()
    finish(run())


if __name__ == "__main__":
    main()
