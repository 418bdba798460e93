import os
from pathlib import Path

import pytest

from holdfast.records.files import write_bytes, write_text


def test_write_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"old", b"", b"new" * 100_000):
        write_bytes(path, data)
        assert path.read_bytes() == data
        assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_text_is_utf8_without_newline_translation(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "é\r\n\n")
    assert (tmp_path / "file").read_bytes() == b"\xc3\xa9\r\n\n"


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_bytes(tmp_path / "atomic", b"")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


class _FullDisk:
    """A file that writes half of the data and then fails."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")


def _fail_write(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, mode: _FullDisk(opened(path, mode)))


def _fail_call(name: str):
    def fail(*_: object) -> None:
        raise OSError(5, f"injected at {name}")

    return lambda monkeypatch: monkeypatch.setattr(os, name, fail)


@pytest.mark.parametrize(
    "inject", [_fail_write, _fail_call("fsync"), _fail_call("replace")], ids=["write", "fsync", "rename"]
)
def test_failed_write_leaves_the_old_file_and_no_other(inject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")
    with monkeypatch.context() as patch:
        inject(patch)
        with pytest.raises(OSError, match=r"No space|injected"):
            write_bytes(path, b"something new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_file_is_synced_before_the_rename_and_the_folder_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(handle: int) -> None:
        calls.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    def watched_replace(a: Path, b: Path) -> None:
        calls.append("rename")
        replace(a, b)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write_bytes(tmp_path / "file", b"data")
    assert calls == ["file", "rename", "folder"]
