"""What the state folder promises: nobody else reads it, nobody else may write there."""

from __future__ import annotations

import os
import stat

import pytest

from common.errors import UsageError
from common.private import open_private, private_folder, write_private


@pytest.fixture(autouse=True)
def _careless_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_and_files_are_made_for_their_owner_alone(tmp_path):
    folder = private_folder(tmp_path / "a" / "b")
    write_private(folder / "x", b"1")
    os.close(open_private(folder / "y"))
    assert [mode(tmp_path / "a"), mode(folder)] == [0o700, 0o700]
    assert [mode(folder / "x"), mode(folder / "y")] == [0o600, 0o600]


def test_a_folder_is_made_once_and_kept(tmp_path):
    assert private_folder(tmp_path / "a") == private_folder(tmp_path / "a")


@pytest.mark.parametrize("bits", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path, bits):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(bits)
    with pytest.raises(UsageError, match="not private") as caught:
        private_folder(folder)
    assert f"chmod 700 {folder}" in caught.value.fix


def test_a_file_is_replaced_whole_and_no_draft_is_left(tmp_path):
    for text in (b"first", b"second"):
        write_private(tmp_path / "x", text)
    assert (tmp_path / "x").read_bytes() == b"second"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_private(tmp_path / "folder", b"1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "x"]


def test_a_link_that_somebody_put_there_is_not_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        open_private(tmp_path / "link")
    write_private(tmp_path / "link", b"1")
    assert not (tmp_path / "elsewhere").exists()
