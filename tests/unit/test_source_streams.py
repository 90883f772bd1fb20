"""Packing is told by the first bytes; what is cut, broken or a bomb is said, and never loaded."""

import gzip
import io

import pytest

from common import codec
from producer.sources.records import Limits, StreamError
from producer.sources.streams import pieces

TEXT = b'{"prompt": "one"}\n{"prompt": "two"}\n' * 50


def unpacked(data, limits=Limits()):  # noqa: B008 - frozen
    return b"".join(pieces(io.BytesIO(data), limits))


@pytest.mark.parametrize(
    "packed",
    [
        TEXT,
        gzip.compress(TEXT, mtime=0),
        codec.compress(TEXT),
        gzip.compress(TEXT[:50], mtime=0) + gzip.compress(TEXT[50:], mtime=0),
        codec.compress(TEXT[:50]) + codec.compress(TEXT[50:]),
        gzip.compress(TEXT, mtime=0) + bytes(512),
        b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc" + codec.compress(TEXT),
    ],
    ids=["plain", "gzip", "zstd", "members", "frames", "padded-gzip", "skippable-frame"],
)
def test_every_packing_gives_the_same_bytes(packed):
    assert unpacked(packed) == TEXT


def collect(source, into):
    """What came before an error counts, too."""
    while (piece := next(source, None)) is not None:
        into.append(piece)


@pytest.mark.row("F7")
@pytest.mark.parametrize("pack", [gzip.compress, codec.compress])
def test_a_cut_file_gives_what_is_there_and_then_an_error(pack):
    packed = pack(TEXT)
    got = []
    with pytest.raises(StreamError, match="cut short"):
        collect(pieces(io.BytesIO(packed[:-5]), Limits()), got)
    assert TEXT.startswith(b"".join(got))


@pytest.mark.parametrize("pack", [gzip.compress, codec.compress])
def test_a_cut_between_the_frames_is_no_cut(pack):
    assert unpacked(pack(TEXT) + pack(b"")) == TEXT


@pytest.mark.row("F7")
@pytest.mark.parametrize("pack", [gzip.compress, codec.compress])
def test_a_broken_file_is_an_error(pack):
    packed = bytearray(pack(bytes(range(256)) * 200))
    packed[6:30] = b"\xff" * 24
    with pytest.raises(StreamError, match=r"broken|cut short"):
        unpacked(bytes(packed))


@pytest.mark.row("F6")
def test_a_bomb_is_an_error_before_it_is_unpacked():
    bomb = codec.compress(bytes(50_000_000))
    limits = Limits(expansion=100, expansion_floor=2**20)
    got = []
    with pytest.raises(StreamError, match="unfolds to over 100 times"):
        collect(pieces(io.BytesIO(bomb), limits), got)
    assert sum(map(len, got)) < 5_000_000


def test_an_empty_file_gives_nothing():
    assert unpacked(b"") == b""
