"""A local stack on a disk that is nearly full."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from common.errors import UsageError
from deploy import stack


def test_a_disk_without_room_is_said_before_any_server_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(stack.shutil, "disk_usage", lambda _folder: SimpleNamespace(free=3 * 10**6))
    made = stack.Stack(tmp_path / "one")
    made.claim()
    try:
        with pytest.raises(UsageError) as told:
            made.start_servers()
    finally:
        made.close()
    assert "too little room" in told.value.what
    assert told.value.why == "3.0 MB are free; it needs 100.0 MB at least."
    assert "--dir" in told.value.fix
