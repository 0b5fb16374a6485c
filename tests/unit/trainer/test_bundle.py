import io
import os
import stat
import zipfile

import pytest

from shoal.errors import Misuse, PeerViolation
from shoal.trainer.bundle import pack, unpack
from shoal.wire.limits import (
    BUNDLE_FILE_MAX_BYTES,
    BUNDLE_FILES_MAX,
    BUNDLE_MAX_BYTES,
    BUNDLE_UNPACKED_MAX_BYTES,
)


def names(data):
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


def tree(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


@pytest.fixture
def task_dir(tmp_path):
    root = tmp_path / "mine"
    for name in ("task.py", "net/__init__.py", "net/layers.py", "words.txt", "README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")
    return root


def test_a_directory_round_trips(task_dir, tmp_path):
    unpack(pack(task_dir, "task:Digits"), tmp_path / "out")
    assert tree(tmp_path / "out") == tree(task_dir)


def test_the_same_files_give_the_same_bytes(task_dir, tmp_path):
    first = pack(task_dir, "task:Digits")
    for number, path in enumerate(sorted(task_dir.rglob("*"))):
        os.utime(path, (number, number))
    (task_dir / "task.py").chmod(0o700)
    assert pack(task_dir, "task:Digits") == first


def test_caches_hidden_files_environments_links_and_large_data_stay_out(task_dir):
    for name in (
        ".git/config",
        "__pycache__/task.pyc",
        "env/pyvenv.cfg",
        "env/lib/big.py",
        ".secret",
        "old.pyc",
    ):
        (task_dir / name).parent.mkdir(exist_ok=True, parents=True)
        (task_dir / name).write_text("no")
    (task_dir / "weights.bin").write_bytes(bytes(BUNDLE_FILE_MAX_BYTES + 1))
    (task_dir / "passwd").symlink_to("/etc/passwd")
    (task_dir / "etc").symlink_to("/etc")
    told = []
    packed = names(pack(task_dir, "task:Digits", told.append))
    assert packed == ["README.md", "net/__init__.py", "net/layers.py", "task.py", "words.txt"]
    # In one line, what a task could miss first; caches are nobody's loss.
    size = f"{BUNDLE_FILE_MAX_BYTES + 1:,} bytes, more than {BUNDLE_FILE_MAX_BYTES:,}"
    assert told == [
        "left out of the bundle: env (installed packages), etc (a link), passwd (a link), "
        f"weights.bin ({size}), .git (hidden), .secret (hidden)"
    ]
    for number in range(9):
        (task_dir / f"weights-{number}.bin").write_bytes(bytes(BUNDLE_FILE_MAX_BYTES + 1))
    pack(task_dir, "task:Digits", told.append)
    assert told[1].endswith(" and 9 more")


def test_nothing_is_told_where_nothing_is_left_out(task_dir):
    told = []
    pack(task_dir, "task:Digits", told.append)
    assert told == []


def test_a_file_brings_the_neighbours_it_imports_and_no_others(task_dir):
    (task_dir / "script.py").write_text("import helper.deep\nfrom net import layers\nimport os, json\n")
    (task_dir / "helper.py").write_text("from . import secret\nimport words\nimport script\n")
    assert names(pack(task_dir / "script.py", "script:Digits")) == [
        "helper.py",
        "net/__init__.py",
        "net/layers.py",
        "script.py",
    ]


def test_packing_refuses_what_cannot_work(task_dir):
    with pytest.raises(Misuse, match=r"holds no other\.py"):
        pack(task_dir, "other:Digits")
    with pytest.raises(Misuse, match="module:Class"):
        pack(task_dir, "../task:Digits")
    for number in range(BUNDLE_FILES_MAX):
        (task_dir / f"{number}.txt").touch()
    with pytest.raises(Misuse, match="its own directory"):
        pack(task_dir, "task:Digits")


def test_packing_refuses_too_much_code(task_dir):
    for number in range(17):
        (task_dir / f"{number}.txt").write_bytes(bytes(BUNDLE_FILE_MAX_BYTES))
    with pytest.raises(Misuse, match="16 MB"):
        pack(task_dir, "task:Digits")
    (task_dir / "huge.py").write_bytes(b"#" * (BUNDLE_FILE_MAX_BYTES + 1))
    with pytest.raises(Misuse, match="too large for code"):
        pack(task_dir, "task:Digits")


def hostile(entries, compression=zipfile.ZIP_STORED):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as archive:
        for name, content, mode in entries:
            info = zipfile.ZipInfo("placeholder")
            info.filename = name
            info.external_attr = mode << 16
            info.compress_type = compression
            archive.writestr(info, content)
    return data.getvalue()


REGULAR = stat.S_IFREG | 0o644


@pytest.mark.parametrize(
    "name",
    [
        "/etc/x",
        "../x",
        "a/../../x",
        "a/./x",
        "./x",
        "a//x",
        "a\\..\\x",
        "C:x",
        "",
        ".",
        "..",
        "a/",
        "x\ny",
        "x" * 600,
    ],
)
def test_unsafe_names_are_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(PeerViolation):
        unpack(hostile([("good.py", "", REGULAR), (name, "x", REGULAR)]), tmp_path / "deep" / "out")
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFDIR, stat.S_IFCHR])
def test_anything_but_a_regular_file_is_refused(tmp_path, kind):
    with pytest.raises(PeerViolation, match="not a regular file"):
        unpack(hostile([("link", "/etc/passwd", kind | 0o777)]), tmp_path / "out")


def test_duplicates_are_refused(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate"):
        data = hostile([("a.py", "1", REGULAR), ("a.py", "2", REGULAR)])
    with pytest.raises(PeerViolation, match="unsafe name"):
        unpack(data, tmp_path / "out")


def test_a_file_where_a_directory_is_due(tmp_path):
    with pytest.raises(PeerViolation):
        unpack(hostile([("a", "1", REGULAR), ("a/b", "2", REGULAR)]), tmp_path / "out")


def test_a_bomb_is_refused_by_what_it_declares(tmp_path):
    bomb = hostile([("zeros", bytes(BUNDLE_UNPACKED_MAX_BYTES + 1), REGULAR)], zipfile.ZIP_DEFLATED)
    assert len(bomb) < 1 << 20
    with pytest.raises(PeerViolation, match="unpacks to"):
        unpack(bomb, tmp_path / "out")
    assert tree(tmp_path) == {}


def test_a_bomb_that_lies_about_its_size_is_cut_off(tmp_path):
    bomb = bytearray(hostile([("zeros", bytes(5 << 20), REGULAR)], zipfile.ZIP_DEFLATED))
    at = bomb.rindex(b"PK\x01\x02")
    bomb[at + 24 : at + 28] = (100).to_bytes(4, "little")
    with pytest.raises(PeerViolation):
        unpack(bytes(bomb), tmp_path / "out")
    assert sum(map(len, tree(tmp_path).values())) <= 100


def test_too_many_files_are_refused(tmp_path):
    many = hostile([(f"{number}.py", "", REGULAR) for number in range(BUNDLE_FILES_MAX + 1)])
    with pytest.raises(PeerViolation, match="1001 files"):
        unpack(many, tmp_path / "out")
    far_too_many = hostile([(f"{number}.py", "", REGULAR) for number in range(12_000)])
    with pytest.raises(PeerViolation, match="too many files"):
        unpack(far_too_many, tmp_path / "out")


def test_what_is_no_plain_zip_is_refused(tmp_path):
    good = hostile([("a.py", "1", REGULAR)])
    with_comment = good[:-2] + b"\x01\x00!"
    for data in (b"", b"PK", good[:-1], with_comment, bytes(BUNDLE_MAX_BYTES + 1), good[:30] + good[40:]):
        with pytest.raises(PeerViolation):
            unpack(data, tmp_path / "out")


def test_a_flipped_byte_is_noticed(tmp_path):
    good = bytearray(hostile([("a.py", "print('hello')", REGULAR)]))
    good[good.index(b"hello")] ^= 1
    with pytest.raises(PeerViolation, match="damaged"):
        unpack(bytes(good), tmp_path / "out")


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(Misuse, match="not empty"):
        unpack(hostile([("kept", "theirs", REGULAR)]), tmp_path)
    assert (tmp_path / "kept").read_text() == "mine"
