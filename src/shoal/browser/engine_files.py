"""ONNX Runtime for browsers: files of an npm package, named here by their hashes, kept in the manager's home.

There are two builds. A tab loads the one with WebGPU where the browser has a graphics processor, else the plain one.
They are 31 MB, and are neither in the repository nor in the wheel: ``shoal browser runtime`` brings them once.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from shoal.errors import Corrupt, Misuse
from shoal.store.files import write_atomically

VERSION = "1.30.0"
PACKAGE = f"onnxruntime-web@{VERSION}"

#: The entry, and what it loads.
PLAIN_FILES = {
    "ort.wasm.min.mjs": "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b",
    "ort-wasm-simd-threaded.mjs": "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
#: The build that waits for the graphics processor by JSPI; the one for browsers without that is 6.6 MB packed.
GRAPHICS_FILES = {
    "ort.jspi.min.mjs": "bc57179d923fda2d88d4a395359c8df44399dde087bf9ff44fc0e40ab398e4d9",
    "ort-wasm-simd-threaded.jspi.mjs": "270e2c6da9f297239d301d329782b6446641cb1e16a77967690adcfca35f3268",
    "ort-wasm-simd-threaded.jspi.wasm": "a54c76f86b0f0d9572380cf1c6292a7b3903716ffcbcd6b0e5c7050bf430eb93",
}
FILES = PLAIN_FILES | GRAPHICS_FILES

#: The package has other builds beside them.
PACKAGE_MAX_BYTES = 128 << 20
_FILE_MAX_BYTES = 32 << 20
_DOWNLOAD_S = 300.0


def folder(home: Path) -> Path:
    return home / "browser" / f"onnxruntime-web-{VERSION}"


def there(home: Path) -> list[str]:
    """Return the names of the files to serve. An earlier release installed only those without WebGPU, which suffice."""
    found = {name for name in FILES if (folder(home) / f"{name}.gz").exists()}
    builds = [build for build in (PLAIN_FILES, GRAPHICS_FILES) if build.keys() <= found]
    return [name for build in builds for name in build] if PLAIN_FILES in builds else []


def install(home: Path, package: Path | None = None) -> Path:
    """Take the files out of the npm package: a file, a folder that npm unpacked, or what npm fetches."""
    if package is not None and package.is_dir():
        found = {name: _read(package / "dist" / name) for name in FILES}
    else:
        found = _unpacked(_download() if package is None else _read(package))
    for name, wanted in FILES.items():
        if hashlib.sha256(found.get(name, b"")).hexdigest() != wanted:
            raise Corrupt(f"{name} is not the file of onnxruntime-web {VERSION}: fetch that package again")
    for name, content in found.items():
        _write(folder(home) / name, content)
        # Packed once: a browser downloads a quarter of it.
        _write(folder(home) / f"{name}.gz", gzip.compress(content, 9, mtime=0))
    return folder(home)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > PACKAGE_MAX_BYTES:
            raise Corrupt(f"{path} is larger than any package of onnxruntime-web")
        return path.read_bytes()
    except OSError as error:
        raise Misuse(f"{path} cannot be read: {error.strerror or error}") from None


def _download() -> bytes:
    """Download the package with npm's configuration on this machine, which may name a mirror."""
    elsewhere = (
        f"on a machine that has npm, run `npm pack {PACKAGE}`, and here `shoal browser runtime --package"
        f" onnxruntime-web-{VERSION}.tgz`"
    )
    npm = shutil.which("npm")
    if npm is None:
        raise Misuse(f"{PACKAGE} comes by npm, which is not installed here: {elsewhere}")
    with tempfile.TemporaryDirectory() as scratch:
        command = [npm, "pack", "--silent", PACKAGE]
        try:
            done = subprocess.run(command, cwd=scratch, capture_output=True, timeout=_DOWNLOAD_S, check=False)
        except subprocess.TimeoutExpired:
            raise Misuse(f"npm did not fetch {PACKAGE} within {_DOWNLOAD_S:g} s: {elsewhere}") from None
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise Misuse(f"npm cannot fetch {PACKAGE} ({said[-1] if said else done.returncode}): {elsewhere}")
        return _read(Path(scratch) / f"onnxruntime-web-{VERSION}.tgz")


def _unpacked(raw: bytes) -> dict[str, bytes]:
    """The wanted files of an archive, read by name into memory: nothing of it becomes a path."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
            for member in archive:
                name = member.name.removeprefix("package/dist/")
                if name in FILES and member.isfile() and member.size <= _FILE_MAX_BYTES:
                    opened = archive.extractfile(member)
                    found[name] = opened.read() if opened is not None else b""
    except (tarfile.TarError, OSError, EOFError) as error:
        raise Corrupt(f"this is not an npm package: {error}") from None
    return found


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content))
