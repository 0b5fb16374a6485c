from shoal.trainer.where_is_it import place_in

SOURCE = """\
def helper():
    while True:
        pass

class Digits:
    def loss(self):
        def inner():
            helper()
        inner()
"""

DUMP = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/queue.py", line 180 in get

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/site-packages/torch/nn/functional.py", line 99 in conv2d
{own}  File "/usr/lib/python3.11/runpy.py", line 88 in _run_code
"""


def test_the_innermost_line_of_the_task(tmp_path):
    (tmp_path / "task.py").write_text(SOURCE)
    file = tmp_path / "task.py"
    own = f'  File "{file}", line 8 in inner\n  File "{file}", line 9 in loss\n'
    assert place_in(DUMP.format(own=own).splitlines(), str(tmp_path)) == "Digits.loss.inner (task.py:8)"
    own = f'  File "{file}", line 9 in loss\n'
    assert place_in(DUMP.format(own=own).splitlines(), str(tmp_path)) == "Digits.loss (task.py:9)"
    own = f'  File "{file}", line 3 in helper\n'
    assert place_in(DUMP.format(own=own).splitlines(), str(tmp_path)) == "helper (task.py:3)"


def test_a_source_that_is_gone_or_says_otherwise_still_gives_the_line(tmp_path):
    own = f'  File "{tmp_path}/net/deep.py", line 4 in forward\n'
    assert place_in(DUMP.format(own=own).splitlines(), str(tmp_path)) == "forward (net/deep.py:4)"
    (tmp_path / "task.py").write_text(SOURCE)
    own = f'  File "{tmp_path}/task.py", line 6 in <lambda>\n'
    assert place_in(DUMP.format(own=own).splitlines(), str(tmp_path)) == "<lambda> (task.py:6)"


def test_without_own_code_the_running_thread_speaks(tmp_path):
    assert place_in(DUMP.format(own="").splitlines(), str(tmp_path)) == "conv2d (torch/nn/functional.py:99)"


def test_nothing_to_read():
    assert place_in([], "/b") == ""
    assert place_in(["Fatal Python error: Aborted", ""], "/b") == ""
