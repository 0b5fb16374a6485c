import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shoal.errors import Misuse
from shoal.task import Task
from shoal.trainer.find import find_task, source_of, tasks_in
from shoal.trainer.importer import make_task, parse_entry

ONE = "import shoal\nclass Digits(shoal.Task): pass\n"


class Here(Task):
    pass


@pytest.fixture
def write(tmp_path):
    def writer(name, source):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return path

    return writer


@pytest.mark.parametrize(
    "source",
    [
        ONE,
        "from shoal import Task\nclass Digits(Task): pass\n",
        "from shoal.task import Task as T\nclass Digits(T): pass\n",
        "import shoal as s\nclass Digits(s.Task): pass\n",
        "import shoal\nclass Base(shoal.Task): pass\nclass Digits(Base): pass\nclass Other: pass\n",
    ],
)
def test_the_one_task_of_a_file(write, source):
    assert tasks_in(write("task.py", source)) == ["Digits"]


def test_paths_people_write(write, tmp_path):
    file = write("mnist/task.py", ONE)
    write("mnist/other.py", ONE.replace("Digits", "Letters"))
    assert find_task(str(file)) == (file, "task:Digits")
    assert find_task(str(file.parent)) == (file.parent, "task:Digits")
    assert find_task(f"{file.parent}:Digits") == (file.parent, "task:Digits")
    assert find_task(f"{file}:Digits") == (file, "task:Digits")
    file.rename(file.with_name("nets.py"))
    with pytest.raises(Misuse, match=r"defines 2 tasks; name one: .*:Digits or .*:Letters"):
        find_task(str(file.parent))
    assert find_task(f"{file.parent}:Letters") == (file.parent, "other:Letters")


def test_a_class_named_outright_may_have_its_base_elsewhere(write):
    file = write("task.py", "from common import Base\nclass Digits(Base): pass\n")
    assert find_task(f"{file}:Digits")[1] == "task:Digits"
    with pytest.raises(Misuse, match=r"defines no task: write class MyTask\(shoal.Task\)") as refused:
        find_task(str(file))
    # The class is named, and how to say that it is meant.
    assert f"If Digits is one, by its base Base, name it: {file}:Digits" in str(refused.value)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("from lm import LM", "LM"),
        ("from lm import LM as Base", "Base"),
        ("from .lm import LM", "LM"),
        ("import lm", "lm.LM"),
        ("import lm as others", "others.LM"),
        ("from middle import LM", "LM"),
    ],
)
def test_a_base_may_be_imported_from_a_file_beside(write, first, then):
    write("work/lm.py", "import shoal\nclass Base(shoal.Task): pass\nclass LM(Base): pass\n")
    write("work/middle.py", "from lm import LM as Old\nimport ddp\nclass LM(Old): pass\n")
    file = write("work/ddp.py", f"{first}\nimport numpy\nclass Ddp({then}): pass\nclass Other(numpy.ndarray): pass\n")
    assert tasks_in(file) == ["Ddp"]
    assert find_task(str(file)) == (file, "ddp:Ddp")


def test_of_a_directory_the_class_that_is_no_base_is_meant(write):
    folder = write("lm.py", "import shoal\nclass LM(shoal.Task): pass\n").parent
    write("ddp.py", "from lm import LM\nclass Ddp(LM): pass\n")
    assert find_task(str(folder)) == (folder, "ddp:Ddp")


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("task.py", "x = 1\n", "defines no task"),
        ("task.py", "def (:\n", "not Python"),
        ("notes.txt", "", "neither a directory nor a Python file"),
    ],
)
def test_helpful_refusals(write, name, source, message):
    with pytest.raises(Misuse, match=message):
        find_task(str(write(name, source)))


def test_refusals_of_places(tmp_path, write):
    for text, message in [
        (str(tmp_path / "absent"), "neither"),
        (str(tmp_path), "holds no Python file"),
        (f"{write('below/a.py', ONE)}:Letters", "defines no task Letters"),
    ]:
        with pytest.raises(Misuse, match=message):
            find_task(text)


def test_finding_never_runs_the_code(write, tmp_path):
    write("task.py", ONE + f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    find_task(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_the_source_of_a_live_task():
    assert source_of(Here()) == (Path(__file__).resolve(), "test_find:Here")

    class Local(Task):
        pass

    with pytest.raises(Misuse, match="top level"):
        source_of(Local())
    notebook = type("Digits", (Task,), {"__module__": "__main__notebook__"})
    with pytest.raises(Misuse, match=r"put the class in a file such as task\.py"):
        source_of(notebook())


def test_the_source_of_a_script(write):
    script = write(
        "my-script.py",
        """
        from shoal.task import Task
        from shoal.trainer.find import source_of
        class Digits(Task): pass
        print(*source_of(Digits()))
        """,
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(script.resolve()), "my-script:Digits"]


def test_source_from_standard_input_has_no_file():
    code = "from shoal.task import Task\nfrom shoal.trainer.find import source_of\nclass D(Task): pass\nsource_of(D())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "Misuse: D is not defined in a file" in done.stderr


@pytest.mark.parametrize("entry", ["task", "a.b:C", "a/b:C", "..:C", "task:C.D", "task:", ":C", "task:C\n", "task:1"])
def test_entries_that_name_nothing(entry):
    with pytest.raises(Misuse, match="module:Class"):
        parse_entry(entry)


UNGUARDED = """
from shoal.task import Task
from shoal.trainer.guard import stop_if_importing

class Digits(Task):
    def __init__(self, depth=1):
        self.depth = depth

def fit(task):
    stop_if_importing()

try:
    fit(Digits())
except Exception:
    raise AssertionError("caught")
AFTER = True
"""


def test_a_script_that_starts_a_job_at_top_level_is_imported_up_to_there(write, tmp_path, imports_forgotten):
    write("queue.py", UNGUARDED)
    task = make_task(tmp_path, "queue:Digits", {"depth": 3})
    assert task.depth == 3
    assert not hasattr(sys.modules["shoal_task_queue"], "AFTER")
    # The standard library's queue is still the standard library's.
    import queue

    assert queue.Queue


def test_outside_a_trainer_the_same_script_runs_through(write):
    assert subprocess.run([sys.executable, write("s.py", UNGUARDED)], timeout=60, check=False).returncode == 0


def test_neighbours_are_imported_by_plain_name(write, tmp_path, imports_forgotten):
    write(
        "a_task.py",
        "from shoal.task import Task\nimport a_neighbour\nclass T(Task): value = a_neighbour.VALUE\n",
    )
    write("a_neighbour.py", "VALUE = 7\n")
    assert make_task(tmp_path, "a_task:T", {}).value == 7


@pytest.mark.parametrize(("source", "message"), [("T = 3\n", "defines no task T"), ("class T: pass\n", "shoal.Task")])
def test_what_is_no_task_is_not_made(write, tmp_path, imports_forgotten, source, message):
    write("not_a_task.py", source)
    with pytest.raises(Misuse, match=message):
        make_task(tmp_path, "not_a_task:T", {})
    with pytest.raises(Misuse, match=r"holds no absent\.py"):
        make_task(tmp_path, "absent:T", {})
