"""The proof from storage alone: a good run has no problems, each damage is named by its object."""

from __future__ import annotations

import hashlib

import pytest

from common import codec
from common.ids import Item, RunName
from common.objectstore import ObjectMissingError, RunPaths
from common.parts import SUFFIXES, WRITER, codec_for
from common.parts.chain import fix_format
from common.prove import MAX_PROBLEMS, Harm, committed_items, prove
from common.queue.failures import FailureInfo
from common.settings import load_settings
from consumer.sink.commit import PartWriter
from consumer.sink.finish import DeadLetters, write_end
from consumer.sink.recover import Ledger
from producer.console import Console
from producer.verify import run_verify
from tests.support.completions import completion
from tests.support.modelstore import ModelStore
from tests.support.runs import store_run

RUN = RunName("run")
PATHS = RunPaths(RUN)
ROWS = 10
DEAD = [FailureInfo(Item(9), "too_long", "9,000 of 8,192 tokens", "gpu0", 1.0)]


def make_run(suffix: str = "jsonl.zst", *, finish: bool = True) -> ModelStore:
    store = ModelStore()
    manifest = store_run(store, RUN, rows=ROWS)
    fix_format(store, PATHS, suffix)
    ledger = Ledger(store, PATHS, manifest, suffix)
    writer = PartWriter(store, PATHS, ledger)
    writer.write([completion(k) for k in range(4)])
    writer.write([completion(k, verdict="truncated") for k in range(4, 9)])
    if finish:
        letters = DeadLetters(store, PATHS, manifest, ledger)
        assert letters.choose([one.item for one in DEAD]) == [9]
        letters.add(DEAD)
        write_end(store, PATHS, manifest, ledger, letters, closing="e-1-1")
    return store


def part(number: int) -> str:
    return PATHS.part(number, "jsonl.zst")


def replace_part(store: ModelStore, number: int, items: list[int], *, index: bool = False) -> None:
    """Put another part in its place, as if a sink had gone wrong."""
    ledger_free = ModelStore()
    manifest = store_run(ledger_free, RUN, rows=100)
    ledger = Ledger(ledger_free, PATHS, manifest, "jsonl.zst")
    writer = PartWriter(ledger_free, PATHS, ledger)
    for before in range(number):
        writer.write([completion(90 + before)])
    writer.write([completion(k) for k in items])
    store.objects[part(number)] = ledger_free.objects[part(number)]
    if index:
        store.objects[PATHS.index(number)] = ledger_free.objects[PATHS.index(number)]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("deep", [True, False])
def test_a_finished_run_is_proven(suffix, deep):
    proof = prove(make_run(suffix), RUN, deep=deep)
    assert proof.problems == []
    assert (proof.complete, proof.unique) == (True, True)
    assert (proof.items, proof.committed, proof.dead, proof.parts) == (10, 9, 1, 2)
    assert proof.verdicts == {"ok": 4, "truncated": 5}


def of_a_key(data):
    """As where a key of one's own encrypts: it looks like an MD5, and is not the body's."""
    return hashlib.md5(b"key" + data).hexdigest()


def of_pieces(data):
    return f"{hashlib.md5(data).hexdigest()}-2" if data.startswith(b"(\xb5/\xfd") else md5(data)


def md5(data):
    return hashlib.md5(data).hexdigest()


@pytest.mark.parametrize("etag_of", [of_a_key, of_pieces])
@pytest.mark.parametrize("deep", [True, False])
def test_etags_that_are_no_md5_of_the_body_damage_no_part(deep, etag_of):
    store = make_run()
    store.etag_of = etag_of
    proof = prove(store, RUN, deep=deep)
    assert (proof.problems, proof.complete, proof.unique) == ([], True, True)
    assert proof.unchecked == (0 if deep else 2)


def test_a_quick_look_says_what_it_did_not_check(monkeypatch, capsys):
    store = make_run()
    store.etag_of = of_a_key
    monkeypatch.setattr("producer.verify.open_store", lambda _settings: store)
    for deep in (True, False):
        run_verify(RUN, load_settings(), Console(), deep=deep, allow_failures=True)
    assert capsys.readouterr().out.count("2 parts checked by name and size alone") == 1


def test_a_quick_look_reads_the_parts_that_differ_from_what_their_indexes_say():
    store = make_run()
    overwrite(part(0))(store)
    replace_part(store, 1, list(range(4, 9)))
    proof = prove(store, RUN, deep=False)
    assert f"{part(0)}: is damaged" in "\n".join(proof.problems)
    assert f"{PATHS.index(1)}: does not describe {part(1)}" in proof.problems
    assert proof.unchecked == 0


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("indexed", [True, False])
def test_while_parts_are_made_again_what_an_earlier_end_says_of_them_is_passed_over(deep, indexed):
    store = make_run()
    for key in (part(1), PATHS.success):
        del store.objects[key]
    replace_part(store, 1, [5, 4, 6, 7], index=indexed)
    proof = prove(store, RUN, deep=deep)
    assert Harm.PART not in proof.harm
    assert (proof.finished, proof.committed) == (False, 8)


def test_a_run_that_goes_on_is_incomplete_and_says_so():
    proof = prove(make_run(finish=False), RUN)
    assert not proof.complete
    assert proof.problems == [
        "run/data/: 1 of 10 items are neither committed nor in failed.jsonl (the first: 9)",
        "run/_SUCCESS: is missing: the run is not finished",
    ]


def test_a_run_that_is_not_there_is_no_proof():
    with pytest.raises(ObjectMissingError):
        prove(ModelStore(), RUN)


def overwrite(key):
    def spoil(store):
        data, metadata = store.objects[key]
        at = len(data) // 2
        store.objects[key] = (data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :], metadata)

    return spoil


def delete(key):
    return lambda store: store.objects.pop(key)


def change(key, old, new):
    def spoil(store):
        data, metadata = store.objects[key]
        assert old in data
        store.objects[key] = (data.replace(old, new), metadata)

    return spoil


SHARD = next(key for key in make_run().objects if "/prompts/" in key)
DAMAGES = {
    "a part is overwritten": (overwrite(part(0)), part(0)),
    "a part is gone": (delete(part(0)), part(0)),
    "the last part is gone": (delete(part(1)), PATHS.data_prefix),
    "an item is there twice": (
        lambda s: replace_part(s, 1, [3, *range(4, 9)], index=True),
        part(1),
    ),
    "an item is foreign": (lambda s: replace_part(s, 1, [4, 5, 6, 7, 8, 70], index=True), part(1)),
    "an item is missing": (lambda s: replace_part(s, 1, [4, 5, 6, 7], index=True), "run/data/"),
    "a part is replaced": (lambda s: replace_part(s, 1, list(range(4, 9))), PATHS.index(1)),
    "a part differs from the manifest": (
        lambda s: replace_part(s, 1, list(range(4, 9)), index=True),
        part(1),
    ),
    "a stray file": (lambda s: s.put("run/data/notes.txt", b""), "run/data/notes.txt"),
    "another format": (lambda s: s.put(PATHS.part(2, "parquet"), b""), "part-00000002.parquet"),
    "an index is gone": (delete(PATHS.index(0)), PATHS.index(0)),
    "an index lies": (change(PATHS.index(0), b'"rows":4', b'"rows":5'), PATHS.index(0)),
    "a shard is overwritten": (overwrite(SHARD), SHARD),
    "a shard is gone": (delete(SHARD), SHARD),
    "a shard is replaced": (lambda s: s.put(SHARD, codec.compress(b"{}\n" * ROWS)), SHARD),
    "run.json is changed": (
        change(PATHS.run_json, b'"sha256":"', b'"sha256":"0'),
        PATHS.run_json,
    ),
    "failed.jsonl is gone": (delete(PATHS.failed), PATHS.failed),
    "failed.jsonl is junk": (lambda s: s.put(PATHS.failed, b"junk\n"), "failed.jsonl:1"),
    "a dead letter is committed": (
        lambda s: s.put(PATHS.failed, b'{"k":9}\n{"k":1}\n'),
        "failed.jsonl:2",
    ),
    "_SUCCESS lies": (change(PATHS.success, b'"dead":1', b'"dead":0'), PATHS.success),
    "_SUCCESS is gone": (delete(PATHS.success), PATHS.success),
    "the manifest is gone": (delete(PATHS.manifest), PATHS.manifest),
    "the manifest lists no parts": (
        lambda s: s.put(PATHS.manifest, b'{"parts":[{"part":[0]},7]}'),
        PATHS.manifest,
    ),
    "the manifest is no listing": (lambda s: s.put(PATHS.manifest, b'{"parts":7}'), PATHS.manifest),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_its_object_named(name):
    spoil, where = DAMAGES[name]
    store = make_run()
    spoil(store)
    proof = prove(store, RUN)
    assert any(where in problem for problem in proof.problems), proof.problems
    assert proof.unique == (name != "an item is there twice")


HARM = {
    "a part is overwritten": Harm.PART,
    "a part is gone": Harm.PART,
    "the last part is gone": Harm.ITEMS,
    "an item is there twice": Harm.PART,
    "a part is replaced": Harm.PART,
    "a stray file": Harm.STRAY,
    "an index is gone": Harm.INDEX,
    "an index lies": Harm.INDEX,
    "a shard is gone": Harm.INPUT,
    "failed.jsonl is gone": Harm.END,
    "_SUCCESS lies": Harm.END,
    "the manifest is gone": Harm.END,
}


@pytest.mark.parametrize("name", HARM)
def test_what_a_problem_is_about_is_told(name):
    store = make_run()
    DAMAGES[name][0](store)
    harm = prove(store, RUN).harm
    assert HARM[name] in harm
    if HARM[name] in {Harm.STRAY, Harm.INDEX, Harm.INPUT}:
        assert set(harm) == {HARM[name]}
    if HARM[name] in {Harm.ITEMS, Harm.END}:
        assert set(harm) <= {Harm.ITEMS, Harm.END}


def test_dead_letters_are_read_line_by_line():
    store = make_run()
    lines = b"".join(codec.dumps({"k": 9, "text": "x" * 1000}) + b"\n" for _ in range(3))
    store.put(PATHS.failed, lines)
    whole, get = [], store.get
    store.get = lambda key: whole.append(key) or get(key)
    problems = prove(store, RUN).problems
    assert problems[:2] == [
        f"{PATHS.failed}:{n}: item 9 is committed or named twice" for n in (2, 3)
    ]
    assert PATHS.failed not in whole


def test_thousands_of_problems_are_counted():
    store = make_run()
    for number in range(MAX_PROBLEMS + 50):
        store.put(f"run/data/stray-{number}", b"")
    problems = prove(store, RUN).problems
    assert problems[-1] == "... and 50 more problems"
    assert len(problems) == MAX_PROBLEMS + 1


def test_committed_items_are_read_from_parts_alone():
    store = make_run(finish=False)
    manifest = store_run(store, RUN, rows=ROWS)
    for key in [key for key in store.objects if "/index/" in key]:
        del store.objects[key]
    assert committed_items(store, manifest) == bytes([0xFF, 0x80])


def test_the_manifest_lists_what_is_there():
    store = make_run("parquet")
    manifest = codec.loads(store.get(PATHS.manifest))
    assert manifest["counts"]["committed"] == 9
    assert manifest["counts"]["models"] == ["tiny"]
    assert manifest["counts"]["completion_tokens"] == 18
    for listed in manifest["parts"]:
        stat = store.stat(f"run/{listed['key']}")
        assert (stat.size, stat.etag) == (listed["bytes"], listed["etag"])
        assert codec_for("parquet").token_of(store.get(stat.key)) == stat.metadata[WRITER]
    assert "too_long | 1" in store.get(PATHS.readme).decode()
