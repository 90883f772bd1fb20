"""Bad files, one after another: each fault has its place, and the good rows around it are read."""

import gzip
import io
import json
import tracemalloc

import pytest

from producer.sources.jsonl import read_json
from producer.sources.records import Fault, Limits, Raw


def read(data, limits=Limits()):  # noqa: B008 - frozen
    return list(read_json(io.BytesIO(data), "f", limits))


def rows(data):
    found = read(data)
    assert all(isinstance(one, Raw) for one in found), found
    return [one.value for one in found]


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b'{"a":1}\n{"a":2}\n', [{"a": 1}, {"a": 2}]),
        (b'{"a":1}\n{"a":2}', [{"a": 1}, {"a": 2}]),
        (b'{"a":1}\r\n\r\n{"a":2}\r\n', [{"a": 1}, {"a": 2}]),
        (b'\xef\xbb\xbf{"a":1}\n', [{"a": 1}]),
        (b'\n \t\n{"a":1}\n\n', [{"a": 1}]),
        ('{"a":"x\u2028y\u0085z"}\n'.encode(), [{"a": "x\u2028y\u0085z"}]),
        (b'{"a":"x\\u0000y"}\n', [{"a": "x\0y"}]),
        (b'{"a":"\\ud83d\\ude00"}\n', [{"a": "😀"}]),
        (b'{"a":1,"a":2}\n', [{"a": 2}]),
        (b"", []),
        (b"[]", []),
        (b'[{"a":1},\n {"a":"],[}{\\""}]\n', [{"a": 1}, {"a": '],[}{"'}]),
        (b'\xef\xbb\xbf\n[ {"a":[1,{"b":[2]}]} ]', [{"a": [1, {"b": [2]}]}]),
    ],
)
def test_good_data_is_read(data, values):
    assert rows(data) == values


@pytest.mark.row("F7")
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"a":', "invalid JSON"),
        (b'{"a":1}{"a":2}', "invalid JSON"),
        (b'{"a":NaN}', "NaN and Infinity"),
        (b'{"a":-Infinity}', "NaN and Infinity"),
        (b'{"a":"\xff"}', "invalid UTF-8 at byte 7"),
        (b'{"a":"\x00"}', "invalid JSON"),
        (b'{"a":"\\ud800" x}', "invalid JSON"),
        (b'"text"', "must be a JSON object, not a string"),
        (b"17", "must be a JSON object, not a number"),
        (b"null", "must be a JSON object, not null"),
        (b"[1]", "must be a JSON object, not an array"),
        (b"{" * 5000, "invalid JSON"),
        (b'{"a":"' + b"x" * 200 + b'"}', "larger than 100 bytes"),
    ],
)
def test_a_bad_row_is_a_fault_with_its_line_and_its_neighbours_are_read(bad, reason):
    limits = Limits(row_bytes=100 if b"x" * 200 in bad else 10_000)
    first, fault, last = read(b'{"n":1}\n' + bad + b'\n{"n":3}\n', limits)
    assert (first.value, last.value, last.place.line) == ({"n": 1}, {"n": 3}, 3)
    assert isinstance(fault, Fault)
    assert str(fault.place) == "f:2"
    assert reason in fault.reason


@pytest.mark.row("F7")
def test_lone_surrogates_are_replaced_and_counted():
    (row,) = read(b'{"a\\udfff":["x\\ud800y",{"b":"\\udc00"}],"big":18446744073709551615}\n')
    assert row.value == {"a�": ["x�y", {"b": "�"}], "big": 18446744073709551615}
    assert row.replaced == 3


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b'[{"a":1},\n{"a":2}', 1, "cut short"),
        (b'[{"a":1}]\n{"a":2}\n', 1, "behind the end"),
        ('{"a":1}\n'.encode("utf-16"), 1, "UTF-16"),
        (gzip.compress(b'{"a":1}\n{"a":2}\n', mtime=0)[:-4], 2, "cut short"),
    ],
)
def test_what_ends_a_file_early_is_the_last_fault(data, line, reason):
    *_, fault = read(data)
    assert isinstance(fault, Fault)
    assert fault.place.line == line
    assert reason in fault.reason


def test_faults_in_an_array_have_the_line_of_their_element():
    found = read(b'[\n{"a":1},\n17,\n\n {"a":\n3}\n]')
    assert [one.place.line for one in found] == [2, 3, 5]
    assert isinstance(found[1], Fault)


@pytest.mark.row("F6")
def test_an_over_long_line_is_passed_over_without_being_held():
    class Endless(io.RawIOBase):
        left = 200

        def read(self, size=-1, /):
            self.left -= 1
            if self.left < 0:
                return b""
            return b"x" * 2**20 if self.left else b'\n{"a":1}\n'

    tracemalloc.start()
    fault, row = read_json(Endless(), "f", Limits())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(fault, Fault)
    assert row.place.line == 2
    assert peak < 40 * 2**20


def test_a_pretty_printed_file_is_told_line_by_line():
    found = read(json.dumps({"a": 1}, indent=2).encode())
    assert all(isinstance(one, Fault) for one in found)
