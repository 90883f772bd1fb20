"""The lines that the sink prints open its parts, in the real DuckDB and the real ``datasets``."""

from __future__ import annotations

import duckdb
import pytest

from common.parts import SUFFIXES, codec_for
from common.parts.opening import datasets_line, duckdb_line
from tests.support.completions import completion

FORMATS = pytest.mark.parametrize("suffix", SUFFIXES)
TOOL_CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "args": {"x": 1}}]}


@pytest.fixture
def glob(tmp_path, suffix):
    """Three parts, each of another kind than the one before."""
    part = codec_for(suffix)
    plain = [completion(k, row_id=None) for k in range(3)]
    thinking = [completion(k, reasoning_content="Hm.", metadata={"tag": k}) for k in range(3, 5)]
    tools = [completion(5, messages=[TOOL_CALL], verdict="truncated", content="a\x00b\u2028c")]
    for number, batch in enumerate((plain, thinking, tools)):
        data = part.encode(batch, f"token{number}")
        (tmp_path / f"part-{number:08}.{suffix}").write_bytes(data)
    return f"{tmp_path}/*.{suffix}"


@FORMATS
def test_duckdb_shows_all_parts(glob, suffix):
    rows = duckdb.sql(duckdb_line(glob, suffix)).fetchall()
    assert [row[1] for row in rows] == ["ok"] * 5 + ["truncated"]
    assert [row[0] or None for row in rows] == [None] * 3 + ["row 3", "row 4", "row 5"]
    assert rows[5][2] == "a\x00b\u2028c"
    reader = {"parquet": "read_parquet", "jsonl.zst": "read_json"}[suffix]
    query = f"SELECT k, messages[1].role, usage.prompt_tokens, output_ids FROM {reader}('{glob}')"
    assert sorted(duckdb.sql(query).fetchall())[5] == (5, "assistant", 3, [3, 5])


@FORMATS
def test_datasets_loads_all_parts(glob, suffix, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    table = eval(datasets_line(glob, suffix), {"datasets": datasets})
    assert sorted(table["k"]) == list(range(6))
    rows = {row["k"]: row for row in table}
    assert rows[3]["reasoning_content"] == "Hm."
    assert not rows[0]["row_id"]
    assert rows[5]["messages"][0]["role"] == "assistant"
    assert '"tool_calls"' in rows[5]["messages"][0]["raw"]
    assert rows[5]["output_ids"] == [3, 5]
