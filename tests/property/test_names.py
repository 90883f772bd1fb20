"""What strangers call things never leads out of a run's own keys and folders."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import InputError, UsageError
from common.ids import RunName, run_name, suggest_run_name
from common.keys import RunKeys
from common.objectstore import RunPaths
from common.prove import input_fingerprint
from common.records import RunManifest, RunSettings
from consumer.sink.commit import PartWriter
from consumer.sink.recover import Ledger
from producer.load.spool import ReadOptions, spool
from producer.load.upload import upload_shards
from producer.sources.url import sources_of, stem_of
from tests.support.completions import completion
from tests.support.modelstore import ModelStore

RUN = RunName("a-run")
KEY = re.compile(r"a-run/[A-Za-z0-9_./-]+")
NASTY = st.sampled_from(
    ["..", "../..", "/", "//", "a/../../b", "\0", "*", "%2e%2e", "~", "a\nb", "C:\\x", "rq:queue:a"]
)
NAMES = NASTY | st.text(max_size=80) | st.from_regex(run_name.__globals__["_RUN"], fullmatch=True)
IDS = NASTY | st.text(st.characters(exclude_categories=("Cs",)), max_size=80)
JSON = st.dictionaries(IDS, IDS | st.integers(-(2**53), 2**53) | st.none(), max_size=4)


def stays_inside(key, run):
    steps = key.split("/")
    return steps[0] == run and not {"", ".", ".."} & set(steps[1:])


def keys_of(run):
    paths = RunPaths(run)
    yield from (paths.run_json, paths.failed, paths.manifest, paths.readme, paths.success)
    yield from (paths.prompts("f" * 64, 12), paths.part(3, "jsonl.zst"), paths.index(10**8))


@given(NAMES)
def test_a_run_s_name_is_refused_or_leads_nowhere_else(name):
    for make in (run_name, suggest_run_name, lambda text: suggest_run_name(stem_of(text))):
        try:
            run = make(name)
        except (UsageError, ValueError):
            continue
        assert all(stays_inside(key, run) for key in keys_of(run))
        keys = RunKeys(run)
        own = {keys.meta, keys.stream, keys.queue, keys.job_prefix}
        assert all(re.fullmatch(r"(rq|genq):[a-z]+:[a-z0-9-]+", key) for key in own)


@given(NAMES)
def test_a_key_is_made_from_a_checked_name_only(name):
    try:
        paths = RunPaths(RunName(name))  # as if somebody had forgotten to check it
    except UsageError:
        return
    assert stays_inside(paths.run_json, name)


@settings(max_examples=50)
@given(st.lists(st.tuples(IDS, JSON), min_size=1, max_size=5))
def test_no_row_has_a_say_in_where_it_is_stored(rows):
    lines = [
        json.dumps({"id": name, "custom_id": name, "meta": more, **more, "prompt": "x"})
        for name, more in rows
    ]
    store = ModelStore()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows.jsonl").write_text("\n".join(lines))
        (folder / "spool").mkdir()
        sources = sources_of((str(folder / "rows.jsonl"),), lambda _: store)
        try:
            found = spool(sources, ReadOptions(skip_faults=True), folder / "spool")
        except InputError:  # none of them can be used
            return
        upload_shards(store, RUN, found, progress=lambda _: None)
        left = {path.name for path in folder.rglob("*") if path.is_file()}
    assert all(KEY.fullmatch(key) for key in store.objects)
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in left)


@settings(max_examples=50)
@given(st.lists(st.tuples(IDS, JSON, IDS), min_size=1, max_size=5))
def test_no_completion_has_a_say_in_where_it_is_stored(answers):
    store = ModelStore()
    manifest = RunManifest(
        run=RUN,
        settings=RunSettings(model="m", model_fingerprint=""),
        fingerprint=input_fingerprint([]),
        rows=len(answers),
        shard_rows=1000,
        shards=[],
        created="2026-01-01T00:00:00Z",
        source="test",
        genq_version="0",
    )
    paths = RunPaths(RUN)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "state"
        ledger = Ledger(store, paths, manifest, "jsonl.zst")
        writer = PartWriter(store, paths, ledger)
        writer.write(
            [
                completion(k, row_id=row_id, metadata=more, worker=worker, model=worker)
                for k, (row_id, more, worker) in enumerate(answers)
            ]
        )
        ledger.save(folder)
        assert [path.parent for path in Path(name).rglob("*") if path.is_file()] == [folder]
    assert len(ledger) == len(answers)
    assert all(KEY.fullmatch(key) for key in store.objects)
