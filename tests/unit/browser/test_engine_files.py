"""What tabs train with: files known by their hashes, and nothing else of a package."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from shoal.browser import engine_files
from shoal.browser.page_files import page_files
from shoal.errors import Corrupt, Misuse


def package(folder: Path, contents: dict[str, bytes]) -> Path:
    path = folder / "package.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def test_files_of_another_package_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    wrong = {f"package/dist/{name}": b"another" for name in engine_files.FILES} | {"../../evil": b"x"}
    with pytest.raises(Corrupt, match=r"not the file of onnxruntime-web"):
        engine_files.install(tmp_path / "home", package(tmp_path, wrong))
    assert not (tmp_path / "home").exists()
    assert not (tmp_path.parent / "evil").exists()


def test_the_build_with_webgpu_is_served_where_it_is_whole_and_tabs_train_without_it(tmp_path: Path) -> None:
    folder = engine_files.folder(tmp_path)
    folder.mkdir(parents=True)
    engine = f"/engine/{engine_files.VERSION}/"

    def served() -> set[str]:
        return {address.removeprefix(engine) for address in page_files(tmp_path) if address.startswith(engine)}

    first, *rest = [*engine_files.GRAPHICS_FILES]
    (folder / f"{first}.gz").write_bytes(b"")
    with pytest.raises(Misuse, match="shoal browser runtime"):
        served()
    for name in engine_files.PLAIN_FILES:
        (folder / f"{name}.gz").write_bytes(b"")
    assert served() == engine_files.PLAIN_FILES.keys()
    for name in rest:
        (folder / f"{name}.gz").write_bytes(b"")
    assert served() == engine_files.FILES.keys()


def test_what_is_no_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(Corrupt, match="not an npm package"):
        engine_files.install(tmp_path, tmp_path / "text")
    with pytest.raises(Misuse, match="cannot be read"):
        engine_files.install(tmp_path, tmp_path / "absent")


def test_a_door_without_its_engine_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="shoal browser runtime"):
        page_files(tmp_path)
