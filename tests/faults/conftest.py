"""What the fault tests of Redis share, those of the store, and those of messages."""

from __future__ import annotations

import pytest

from tests.faults.typist import Typist
from tests.support.frail import frail_redis
from tests.support.s3_proxy import s3_proxy


@pytest.fixture
def store_proxy(s3_server):
    """The session's S3 server behind a proxy that fails as it is told."""
    with s3_proxy(s3_server) as made:
        yield made


@pytest.fixture
def frail():
    """A Redis of the test's own that loses things."""
    with frail_redis() as server:
        yield server


@pytest.fixture
def type_in(service_env, tmp_path, monkeypatch, capsys):
    """A shell in a folder with data sets, good and bad."""
    texts = {
        "rows": '{"prompt":"a"}\n{"prompt":"b"}\n',
        "other": '{"prompt":"a"}\n{"prompt":"c"}\n',
        "bad": '{"prompt":"a"}\n{"prompt":\n',
        "empty": "",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "small.gguf").touch()
    return Typist(service_env, tmp_path, monkeypatch, capsys)
