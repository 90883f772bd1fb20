"""The sink's ledger and the chain that it is built from."""

from __future__ import annotations

import pytest

from common import codec
from common.errors import VerifyError
from common.ids import RunName
from common.objectstore import RunPaths
from common.parts import SUFFIXES, WRITER
from common.parts.bits import Bits
from common.parts.chain import chain_end, check_end, fix_format, read_format, walk
from consumer.sink.commit import PartWriter, UnstorableError
from consumer.sink.recover import Ledger
from tests.support.completions import completion
from tests.support.modelstore import ModelStore
from tests.support.runs import run_manifest

PATHS = RunPaths(RunName("run"))
FORMATS = pytest.mark.parametrize("suffix", SUFFIXES)


@pytest.fixture
def store():
    return ModelStore()


def new_ledger(store, suffix="jsonl.zst", rows=100):
    return Ledger(store, PATHS, run_manifest(PATHS.run, rows=rows), suffix)


def write(store, *batches, suffix="jsonl.zst"):
    ledger = new_ledger(store, suffix)
    ledger.catch_up()
    writer = PartWriter(store, PATHS, ledger)
    for batch in batches:
        writer.write([completion(k) for k in batch])
    return ledger


@FORMATS
def test_a_new_ledger_reads_the_whole_chain(store, suffix):
    write(store, *([k] for k in range(70)), suffix=suffix)
    ledger = new_ledger(store, suffix)
    assert len(ledger.catch_up()) == 70
    assert ledger.next == 70
    assert set(ledger.copy_of_bits().missing()) == set(range(70, 100))


@pytest.mark.parametrize("harm", ["gone", "another part"])
def test_nothing_is_written_behind_a_part_that_was_deleted(store, harm):
    ledger = new_ledger(store)
    writer = PartWriter(store, PATHS, ledger)
    for batch in ([0, 1], [2]):
        writer.write([completion(k) for k in batch])
    del store.objects[PATHS.part(1, ledger.suffix)]
    if harm != "gone":
        write(store, [3])
    parts = chain_end(store, PATHS, ledger.suffix)
    for item in (4, 2):  # nor is what the part held taken for committed
        with pytest.raises(VerifyError, match=harm):
            writer.write([completion(item)])
    assert PATHS.part(2, ledger.suffix) not in store.objects
    assert write(store, [4]).next == parts + 1


def test_a_part_that_was_put_back_without_its_metadata_is_the_same(store):
    ledger = new_ledger(store)
    writer = PartWriter(store, PATHS, ledger)
    writer.write([completion(0)])
    key = PATHS.part(0, ledger.suffix)
    store.objects[key] = (store.objects[key][0], {})
    assert writer.write([completion(1)]).part == 1


def test_a_part_that_a_look_up_does_not_know_yet_is_there(store, monkeypatch):
    writer = PartWriter(store, PATHS, new_ledger(store))
    writer.write([completion(0)])
    monkeypatch.setattr(store, "stat", lambda _key: None)
    assert writer.write([completion(1)]).part == 1


def test_a_saved_ledger_reads_only_what_is_new(store, tmp_path):
    write(store, [0, 1], [2]).save(tmp_path)
    write(store, [3])
    ledger = new_ledger(store)
    assert ledger.load(tmp_path)
    assert [found.index.part for found in ledger.catch_up()] == [2]
    assert [k for k in range(5) if k in ledger] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"",
        lambda data: b"{}\n" + data.partition(b"\n")[2],
        lambda data: data.replace(b'"run":"run"', b'"run":"ran"'),
        lambda data: data.replace(b'"next":1', b'"next":0'),
        lambda data: data.replace(b'"version":1', b'"version":9'),
    ],
)
def test_a_damaged_or_foreign_copy_is_not_taken(store, tmp_path, spoil):
    write(store, [0]).save(tmp_path)
    (file,) = tmp_path.iterdir()
    spoilt = spoil(file.read_bytes())
    assert spoilt != file.read_bytes()
    file.write_bytes(spoilt)
    ledger = new_ledger(store)
    assert not ledger.load(tmp_path)
    ledger.catch_up()
    assert 0 in ledger


def test_a_copy_is_not_taken_where_storage_was_emptied_or_replaced(store, tmp_path):
    write(store, [0], [1]).save(tmp_path)
    store.objects.clear()
    assert not new_ledger(store).load(tmp_path)
    write(store, [5], [6])
    assert not new_ledger(store).load(tmp_path)


def test_a_full_disk_does_not_stop_the_sink(store, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    write(store, [0]).save(blocked)


def test_a_missing_or_foreign_index_is_read_from_the_part(store):
    write(store, [0, 1], [2])
    del store.objects[PATHS.index(0)]
    data, _ = store.objects[PATHS.index(1)]
    store.objects[PATHS.index(1)] = (data.replace(b'"token":"', b'"token":"x'), {})
    found = list(walk(store, PATHS, "jsonl.zst"))
    assert [(part.indexed, part.index.items) for part in found] == [(False, [0, 1]), (False, [2])]


def test_a_part_that_lost_its_metadata_is_known_by_its_body(store):
    ledger = new_ledger(store)
    writer = PartWriter(store, PATHS, ledger)
    store.fault = lambda call, moment: (call, moment) == ("create", "after")
    key = PATHS.part(0, "jsonl.zst")
    original = store.create

    def create(*args, **kwargs):
        outcome = original(*args, **kwargs)
        store.objects[key] = (store.objects[key][0], {})
        return outcome

    store.create = create
    assert writer.write([completion(0)]).items == [0]
    assert 0 in ledger


def test_a_damaged_part_is_named(store):
    write(store, [0])
    key = PATHS.part(0, "jsonl.zst")
    store.objects[key] = (b"junk", {WRITER: "x"})
    with pytest.raises(VerifyError, match=r"part-00000000\.jsonl\.zst is damaged"):
        new_ledger(store).catch_up()


def test_a_part_with_a_foreign_item_is_refused(store):
    write(store, [99])
    with pytest.raises(VerifyError, match="item 99"):
        new_ledger(store, rows=50).catch_up()


def test_a_deleted_part_is_found_before_its_number_is_used_again(store):
    write(store, [0], [1], [2])
    del store.objects[PATHS.part(1, "jsonl.zst")]
    with pytest.raises(VerifyError, match=r"part-00000001\.jsonl\.zst is missing"):
        new_ledger(store).catch_up()
    check_end(store, PATHS, "jsonl.zst", 3)


def test_what_is_no_part_behind_the_end_tells_of_no_deleted_one(store):
    write(store, [0])
    for name in ("part-00000005.jsonl.zst.bak", "part-00000005.parquet"):
        store.put(f"{PATHS.data_prefix}{name}", b"")
    assert len(new_ledger(store).catch_up()) == 1


def test_the_first_writer_fixes_the_format(store):
    assert read_format(store, PATHS) is None
    assert fix_format(store, PATHS, "parquet") == "parquet"
    assert fix_format(store, PATHS, "jsonl.zst") == "parquet"
    store.objects["run/format.json"] = (codec.dumps({"suffix": "tar"}), {})
    with pytest.raises(VerifyError, match="tar"):
        read_format(store, PATHS)


@FORMATS
def test_poison_is_named_and_nothing_is_written(store, suffix):
    writer = PartWriter(store, PATHS, new_ledger(store, suffix))
    batch = [completion(0), completion(1, output_ids=[2**31]), completion(2)]
    with pytest.raises(UnstorableError) as caught:
        writer.write(batch)
    assert list(caught.value.reasons) == [1]
    assert store.objects == {}
    assert writer.write([batch[0], batch[2]]).items == [0, 2]


def test_bits_are_laid_out_as_redis_does():
    bits = Bits(12)
    assert bits.add(0)
    assert bits.add(9)
    assert not bits.add(9)
    assert bits.to_bytes() == bytes([0x80, 0x40])
    assert (len(bits), list(bits.missing())) == (2, [1, 2, 3, 4, 5, 6, 7, 8, 10, 11])
    with pytest.raises(IndexError):
        bits.add(12)
