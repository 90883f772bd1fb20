"""The lines that open a run's completions in other people's tools."""

from __future__ import annotations

_SQL_READERS = {"parquet": "read_parquet", "jsonl.zst": "read_json"}
_LOADERS = {"parquet": "parquet", "jsonl.zst": "json"}


def duckdb_line(glob: str, suffix: str) -> str:
    """Return a query that shows the completions below ``glob``."""
    reader = _SQL_READERS[suffix]
    return f"SELECT row_id, verdict, content FROM {reader}('{glob}') ORDER BY k;"  # noqa: S608 - for people to paste


def datasets_line(glob: str, suffix: str) -> str:
    """Return a Python expression that loads the completions below ``glob``."""
    return f'datasets.load_dataset("{_LOADERS[suffix]}", data_files="{glob}", split="train")'
