"""Single columns of a part: the same in both formats, and little is read for them."""

from __future__ import annotations

import io

import pytest

from common.errors import StoreAwayError
from common.objectstore import ObjectStat
from common.parts import SUFFIXES, codec_for
from common.ranges import Ranges, lines_of
from common.records import Usage
from tests.support.completions import completion

FORMATS = pytest.mark.parametrize("suffix", SUFFIXES)


class OneObject:
    """A store of one object that notes which bytes are asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stat = ObjectStat("part", len(data), "tag")
        self.read: list[tuple[int, int]] = []

    def read_range(self, key: str, offset: int, size: int, *, etag: str) -> bytes:
        assert (key, etag) == ("part", "tag")
        self.read.append((offset, size))
        return self.data[offset : offset + size]


def long_ones(count):
    return [
        completion(k, row_id=None, usage=Usage(3, k, 0, 1), output_ids=[*range(k, k + 4000)])
        for k in range(count)
    ]


@FORMATS
def test_columns_come_in_order_and_nothing_else(suffix):
    part = codec_for(suffix)
    data = part.encode(long_ones(3), "token")
    rows = list(part.open(io.BytesIO(data)).rows(["k", "row_id", "usage"]))
    assert [row["k"] for row in rows] == [0, 1, 2]
    assert [row["usage"]["completion_tokens"] for row in rows] == [0, 1, 2]
    assert set(rows[0]) == {"k", "row_id", "usage"}
    assert rows[0]["row_id"] is None


def test_of_a_parquet_part_a_small_share_is_read():
    part = codec_for("parquet")
    store = OneObject(part.encode(long_ones(500), "token"))
    rows = list(part.open(Ranges(store, store.stat)).rows(["k", "verdict", "usage", "seconds"]))
    assert len(rows) == 500
    assert sum(size for _, size in store.read) < len(store.data) / 4
    assert len(store.read) <= 6


@FORMATS
def test_a_column_that_an_older_part_does_not_have_is_left_out(suffix):
    data = codec_for(suffix).encode(long_ones(1), "token")
    (row,) = codec_for(suffix).open(io.BytesIO(data)).rows(["k", "of_the_future"])
    assert row == {"k": 0}


def test_a_store_that_does_not_answer_is_no_damaged_part():
    store = OneObject(codec_for("parquet").encode(long_ones(500), "token"))
    part = codec_for("parquet").open(Ranges(store, store.stat))
    store.read_range = away
    with pytest.raises(StoreAwayError):
        list(part.rows(["k"]))


def away(*_, **__):
    raise StoreAwayError("away")


@FORMATS
def test_a_cut_part_is_told(suffix):
    part = codec_for(suffix)
    data = part.encode(long_ones(3), "token")[:-30]
    with pytest.raises(ValueError):
        list(part.open(io.BytesIO(data)).rows(["k"]))


def test_lines_of_an_object_come_whole():
    lines = [b"a" * 3_000_000, b"b" * 3_000_000, b"c"]
    store = OneObject(b"\n".join(lines) + b"\n\n")
    assert list(lines_of(store, store.stat)) == lines
