"""Numbers come through as they are written, or their row is refused: no digit is lost unsaid."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.codec import dumps, loads
from producer.sources.chat import canonical_row
from producer.sources.jsonl import read_json
from producer.sources.numbers import doubtful_float
from producer.sources.reader import read_rows
from producer.sources.records import Fault, Limits, Raw
from producer.sources.url import sources_of

IDS = ("123456789012345678901", "123456789012345678902")  # one float
LEAST, MOST = str(-(2**63)), str(2**64 - 1)
pytestmark = pytest.mark.row("F7")


def read(data):
    return list(read_json(io.BytesIO(data), "f", Limits()))


def read_file(path):
    return list(read_rows(sources_of((str(path),), lambda bucket: None), Limits()))


@pytest.mark.parametrize("number", [*IDS, str(2**64), str(-(2**63) - 1), "9" * 300])
@pytest.mark.parametrize(
    ("row", "name"),
    [
        ('{"id":%s,"prompt":"x"}', "'id'"),
        ('{"prompt":"x","custom_id" : \t%s}', "'custom_id'"),
        ('{"prompt":"x","meta":{"a":"b","deep":[{"n":%s}]}}', "'n'"),
        ('{"prompt":"x","list":[1,%s]}', "a number in it"),
        ('{"prompt":"\\ud800","id":%s}', "'id'"),  # which the fast reader refuses
        ('{"prompt":"x","a\\"b":%s}', "'a\"b'"),
        ('{"prompt":"x","\\ud800":%s}', "a number in it"),
        ('{"prompt":"1:","x":["id",%s]}', "a number in it"),
        ('{"messages":[{"role":"user","content":"x","n":%s}]}', "'n'"),
        ('{"custom_id":%s,"body":{"prompt":"x"}}', "'custom_id'"),
        ('{"id":%s,"id":1,"prompt":"x"}', "'id'"),
    ],
)
def test_an_integer_of_over_64_bits_is_a_fault_that_names_its_key(row, name, number):
    before, fault, after = read(b'{"n":1}\n' + (row % number).encode() + b'\n{"n":3}\n')
    assert isinstance(before, Raw)
    assert isinstance(after, Raw)
    assert isinstance(fault, Fault)
    assert str(fault.place) == "f:2"
    assert fault.reason.startswith(f"{name} is an integer of over 64 bits")
    assert "write it as text" in fault.reason
    assert number not in fault.reason


@pytest.mark.parametrize(
    "row",
    [
        {"id": int(LEAST), "prompt": MOST},
        {"id": int(MOST), "prompt": "x"},
        {"id": IDS[0], "prompt": f'"{IDS[0]}" \\{IDS[1]}\\ , "id": {IDS[0]}'},
        {"prompt": f"{IDS[0]}\n", IDS[0]: f": {IDS[1]}"},
        {"prompt": "\\", "a": [f"{IDS[0]},{IDS[1]}", "\\\\", '\\"']},
        {"prompt": "x", "near": [float(IDS[0]), 1e300, -1e-300, 0.1234567890123456789]},
    ],
)
def test_what_64_bits_hold_and_digits_within_text_come_through(row):
    (found,) = read(dumps(row))
    assert found.value == row
    assert loads(dumps(found.value)) == row


@pytest.mark.parametrize("number", ["0." + "1" * 40, IDS[0] + ".0", IDS[0] + "e-3", "-1E19"])
def test_a_float_is_no_fault_however_many_digits_it_has(number):
    (found,) = read(f'{{"prompt":"x","score":{number}}}'.encode())
    assert found.value["score"] == float(number)


@pytest.mark.parametrize("text", ["x", "\\u00e9"])  # the second goes through the lenient reader
@pytest.mark.parametrize("number", ["1e400", "-1e400"])
def test_a_number_beyond_all_floats_does_not_become_null(text, number):
    (fault,) = read(f'{{"prompt":"{text}","score":{number}}}'.encode())
    assert isinstance(fault, Fault)
    assert "larger than any float" in fault.reason


def test_the_places_of_an_array_are_those_of_its_elements():
    found = read(f'[\n{{"id":1}},\n\n{{"id":\n{IDS[0]}}},\n{{"id":"{IDS[0]}"}}]'.encode())
    assert [one.place.line for one in found] == [2, 4, 6]
    assert [isinstance(one, Fault) for one in found] == [False, True, False]


def test_of_a_table_text_is_kept_and_what_is_json_is_looked_through(tmp_path):
    path = tmp_path / "rows.csv"
    cell = '[{"role":"user","content":"x","n":%s}]'.replace('"', '""')
    path.write_text(
        f'id,messages,seed\n{IDS[0]},"{cell % 1}",\n{IDS[1]},"{cell % IDS[0]}",\n3,,{IDS[0]}\n'
    )
    kept, nested, seed = read_file(path)
    assert canonical_row(0, kept.value).id == IDS[0]
    assert [str(one.place) for one in (nested, seed)] == [f"{path}:3", f"{path}:4"]
    assert nested.reason.startswith("'n' is an integer of over 64 bits")
    assert seed.reason.startswith("a number in it is an integer of over 64 bits")


def test_columns_come_through_to_their_last_digit(tmp_path):
    whole = pa.array([2**64 - 1, 2**64 - 2], pa.uint64())
    wide = pa.array([int(one) for one in IDS], pa.decimal128(38, 0))
    pq.write_table(
        pa.table({"prompt": ["x", "y"], "id": whole, "wide": wide}), tmp_path / "rows.parquet"
    )
    found = read_file(tmp_path / "rows.parquet")
    assert [one.value["id"] for one in found] == [2**64 - 1, 2**64 - 2]
    assert [one.value["wide"] for one in found] == list(IDS)


@pytest.mark.parametrize(
    ("value", "doubtful"),
    [
        ({"a": [1, 0.5, {"b": 2.0**53}]}, True),
        ({"a": -1e300}, True),
        ({"a": 2.0**53 - 1, "b": 2**63, "c": str(2**70), "d": None}, False),
        ({"a": float("inf"), "b": float("nan")}, False),  # written as null
    ],
)
def test_a_float_is_in_doubt_where_integers_run_together(value, doubtful):
    assert doubtful_float(value) is doubtful


def test_text_that_the_hubs_package_made_floats_of_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, ids in {"text": IDS, "whole": (str(2**62), "2")}.items():
        (tmp_path / name).mkdir()
        lines = [json.dumps({"prompt": "x", "id": int(one)}) for one in ids]
        (tmp_path / name / "train.jsonl").write_text("\n".join(lines))
    pq.write_table(pa.table({"prompt": ["x"], "score": [1e300]}), tmp_path / "train.parquet")
    found = read_file(f"hf://{tmp_path}/text")
    assert [str(one.place)[-2:] for one in found] == [":1", ":2"]
    assert all("beyond 2^53" in one.reason for one in found)
    assert [one.value["id"] for one in read_file(f"hf://{tmp_path}/whole")] == [2**62, 2]
    (tmp_path / "columns").mkdir()
    (tmp_path / "train.parquet").rename(tmp_path / "columns" / "train.parquet")
    assert [one.value["score"] for one in read_file(f"hf://{tmp_path}/columns")] == [1e300]
