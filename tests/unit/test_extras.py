"""What to install for an extra is read from the installed package, so that it works outside a clone."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.extras import install_command, packages_of

METADATA = """Metadata-Version: 2.4
Name: shoal
Version: 9.9
Requires-Dist: numpy>=2.0
Provides-Extra: console
Requires-Dist: starlette>=1.3.1; extra == "console"
Requires-Dist: uvicorn>=0.35; extra == 'console'
Provides-Extra: postgres
Requires-Dist: psycopg[binary]>=3.2; extra == 'postgres'
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shoal-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_packages_of_an_extra_are_named(installed: None) -> None:
    assert packages_of("console") == ["starlette>=1.3.1", "uvicorn>=0.35"]
    assert install_command("console") == "pip install 'starlette>=1.3.1' 'uvicorn>=0.35'"
    assert install_command("postgres") == "pip install 'psycopg[binary]>=3.2'"


def test_an_extra_that_the_package_does_not_list_is_one_of_a_clone(installed: None) -> None:
    assert install_command("browser") == "pip install '.[browser]' in a clone"


def test_every_extra_that_a_message_names_is_there() -> None:
    source = Path(__file__).parents[2]
    declared = (source / "pyproject.toml").read_text()
    named = {
        part.split(")")[0].strip("\"'")
        for file in (source / "src").rglob("*.py")
        for part in file.read_text().split("install_command(")[1:]
        if file.name != "extras.py"
    }
    assert named, "messages name extras by this function"
    assert all(f"\n{extra} = [" in declared for extra in named), named
    assert not any("'.[" in file.read_text() for file in (source / "src").rglob("*.py") if file.name != "extras.py")
