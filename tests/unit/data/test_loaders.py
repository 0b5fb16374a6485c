import gzip
import hashlib
import io
import threading
from urllib.error import URLError

import numpy as np
import pytest

from shoal.data import files, mnist, permissions
from shoal.data.digits import fetch_mnist, read_idx
from shoal.data.made_up_digits import made_up_digits
from shoal.errors import Corrupt, Misuse, Unreachable

CONTENT = b"some public bytes"
REMOTE = files.RemoteFile(name="f.gz", sha256=hashlib.sha256(CONTENT).hexdigest(), bytes=len(CONTENT))
MIRRORS = ("https://one.example/data", "https://two.example/data")


@pytest.fixture
def web(monkeypatch, tmp_path):
    """A world of URLs in place of the network; whatever is not in it is down."""
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    pages: dict[str, bytes] = {}
    asked: list[str] = []

    def urlopen(url, timeout):
        assert timeout > 0
        asked.append(url)
        if url not in pages:
            raise OSError("no route")
        return io.BytesIO(pages[url])

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return pages, asked


def test_a_file_is_fetched_once_from_the_first_mirror_that_has_it(web, tmp_path):
    pages, asked = web
    pages[f"{MIRRORS[1]}/f.gz"] = CONTENT
    for _ in range(2):
        assert files.fetched("set", REMOTE, MIRRORS) == CONTENT
    assert asked == [f"{MIRRORS[0]}/f.gz", f"{MIRRORS[1]}/f.gz"]
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["f.gz"]


def test_a_mirror_that_gives_something_else_is_passed_over(web, tmp_path):
    pages, _ = web
    pages[f"{MIRRORS[0]}/f.gz"] = CONTENT[:-1] + b"!"
    pages[f"{MIRRORS[1]}/f.gz"] = CONTENT * 1000
    with pytest.raises(Unreachable, match=r"gave another file.*gave another file.*copy it by hand") as refused:
        files.fetched("set", REMOTE, MIRRORS)
    assert f"copy it by hand to {tmp_path / 'set' / 'f.gz'}" in str(refused.value)


def test_a_damaged_file_is_named_not_used(web, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "f.gz").write_bytes(b"damaged")
    with pytest.raises(Corrupt, match="delete it"):
        files.fetched("set", REMOTE, MIRRORS)
    assert web[1] == []


def test_only_https(web):
    with pytest.raises(Misuse, match="not https"):
        files.fetched("set", REMOTE, ["http://one.example"])


def test_the_cache_is_the_users_own(monkeypatch, tmp_path):
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert files.data_dir() == tmp_path / "shoal"


def test_idx():
    assert read_idx(b"\0\0\x08\x02\0\0\0\x02\0\0\0\x03abcdef").tolist() == [[97, 98, 99], [100, 101, 102]]
    for bad in (
        b"",
        b"\0\0\x08",
        b"\0\0\x0d\x01\0\0\0\x01abcd",
        b"\0\0\x08\x01\0\0\0\x05abcd",
        b"\0\0\x08\0",
    ):
        with pytest.raises(Corrupt):
            read_idx(bad)


def test_absent_drebin_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    with pytest.raises(Misuse, match=r"drebin\.mlsec\.org"):
        permissions("train")
    (tmp_path / "permissions").mkdir()
    np.savez(tmp_path / "permissions" / "drebin_all_permissions.npz", X=np.zeros(3))
    with pytest.raises(Corrupt):
        permissions("train")


def test_unknown_splits():
    for load in (mnist, permissions):
        with pytest.raises(Misuse, match="train and test"):
            load("validation")


@pytest.mark.needs_data
def test_mnist(real_data):
    x, y = mnist("test")
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((10_000, 1, 28, 28), np.uint8, (10_000,), np.int64)
    assert y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    raw = gzip.decompress((real_data / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())
    assert x.tobytes() == raw[16:]
    train, _ = mnist("train")
    assert train.shape == (60_000, 1, 28, 28)


@pytest.mark.needs_data
def test_permissions_never_test_on_what_was_trained_on(real_data):
    train, train_y = permissions("train")
    test, test_y = permissions("test")
    assert (train.shape, test.shape, train.dtype) == ((6_656, 427), (1_878, 427), np.uint8)
    assert (int((train_y == 0).sum()), int((test_y == 0).sum())) == (2_510, 708)
    assert train.max() == 1
    assert not train[:, 207:].any()
    assert 0 <= train_y.min() < train_y.max() <= 70
    assert not {row.tobytes() for row in train} & {row.tobytes() for row in test}
    # FakeInstaller, DREBIN's largest family, has 925 apps.
    assert int((train_y == 1).sum() + (test_y == 1).sum()) == 925


def test_mnist_that_cannot_be_fetched_is_said_in_time(web, monkeypatch):
    assert fetch_mnist(patience_s=60) == "no server can be reached"
    answers = threading.Event()

    def unanswered(url, timeout):
        answers.wait(30)
        raise URLError("no answer")

    monkeypatch.setattr("urllib.request.urlopen", unanswered)
    before = set(threading.enumerate())
    assert fetch_mnist(patience_s=0.2) == "no server answered within 0.2 s"
    # The thread that still waits ends within this test.
    answers.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(30)


def test_a_damaged_file_of_mnist_is_not_taken_for_a_missing_network(web, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    with pytest.raises(Corrupt, match="delete it"):
        fetch_mnist(patience_s=60)


def test_made_up_digits_have_mnists_shape_and_can_be_told_apart():
    (images, labels), (others, truth) = made_up_digits("train"), made_up_digits("test")
    assert (images.dtype, images.shape[1:], labels.dtype) == (np.uint8, (1, 28, 28), np.int64)
    assert len(images) == len(labels) == 16_000
    assert sorted(set(labels.tolist())) == list(range(10))
    again, _ = made_up_digits("test")
    assert np.array_equal(others, again), "the same digits each time"
    # By the nearest mean image: far better than chance, far from perfect, as with MNIST.
    means = np.stack([images[labels == digit].mean(0).ravel() for digit in range(10)])
    distances = ((others.reshape(len(others), 1, -1) - means) ** 2).sum(-1)
    assert 0.4 < (distances.argmin(1) == truth).mean() < 0.95
    with pytest.raises(Misuse, match="train and test"):
        made_up_digits("dev")
