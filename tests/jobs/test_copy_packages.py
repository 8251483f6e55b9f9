"""Packages that are installed are copied as they were locked, without what no worker imports."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import py_compile
from pathlib import Path

import pytest

from shardline.jobs.copy_packages import copy_packages, main

LOCK = """
# made by a tool
made-up[extra]==1.2 ; python_version >= '3.11' \\
    --hash=sha256:00
made-up==1.3 ; python_version < '3.11' \\
    --hash=sha256:01
not-of-this-platform==7 ; sys_platform == 'elsewhere'
"""

FILES = {
    "made_up/__init__.py": "ONE = 1\n",
    "made_up/data.bin": "two",
    "made_up/tests/test_it.py": "",
    "pyspark/jars/spark.jar": "",
    "../../../bin/made-up": "",
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in version 1.2, as pip would have installed it."""
    folder = tmp_path / "lib" / "python" / "site-packages"
    about = folder / "made_up-1.2.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.2\n")
    lines = ["made_up-1.2.dist-info/METADATA,,"]
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode()
        lines.append(f"{name},sha256={digest.rstrip('=')},{len(content)}")
    (about / "RECORD").write_text("\n".join([*lines, "made_up-1.2.dist-info/RECORD,,"]))
    py_compile.compile(str(folder / "made_up/__init__.py"))
    monkeypatch.syspath_prepend(folder)
    return folder


def test_what_workers_import_is_copied(installed: Path, tmp_path: Path) -> None:
    """Files, what is known of them, and bytecode that counts; no tests, jars and programs."""
    target = tmp_path / "target"
    copy_packages(LOCK, target)
    copied = {p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()}
    compiled = importlib.util.cache_from_source("made_up/__init__.py")
    about = {f"made_up-1.2.dist-info/{name}" for name in ("METADATA", "RECORD")}
    assert copied == {"made_up/__init__.py", "made_up/data.bin", compiled, *about}
    # Python takes bytecode that notes the time and the length of its source.
    for name in ("made_up/__init__.py", compiled):
        was, is_ = ((folder / name) for folder in (installed, target))
        assert is_.read_bytes() == was.read_bytes()
        assert int(is_.stat().st_mtime) == int(was.stat().st_mtime)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: (p / "made_up/data.bin").write_text("three"), "not as it was installed"),
        (lambda p: (p / "made_up/data.bin").unlink(), "is missing"),
    ],
)
def test_what_was_changed_is_not_copied(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: object, says: str
) -> None:
    """It is named, with a status that stops the script."""
    assert callable(change)
    change(installed)
    lock = tmp_path / "a.lock"
    lock.write_text(LOCK)
    assert main([str(lock), str(tmp_path / "target")]) == 1
    said = capsys.readouterr().err
    assert "made_up/data.bin" in said
    assert says in said


@pytest.mark.parametrize(
    ("lock", "says"),
    [
        ("made-up==1.4\n", "'made-up' is 1.2, not 1.4"),
        ("nobodys==1\n", "'nobodys' is not installed"),
    ],
)
def test_what_is_not_as_locked_is_not_copied(
    installed: Path, tmp_path: Path, lock: str, says: str
) -> None:
    """Another version, or none: the archive would not be what the lock says."""
    del installed
    with pytest.raises(ValueError, match=says):
        copy_packages(lock, tmp_path / "target")
