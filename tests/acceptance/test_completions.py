"""Completions that a trainer can trust: one run of everything, by the real model, to its last use.

The run holds rows of every shape, odd ones, and such as must be refused. It is held by its canary,
accepted, finished, and what was cut off is done again as a child run. Then every reader of it must
say the same.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
import redis

from common.errors import Exit
from common.family import Family
from common.ids import RunName
from common.objectstore import ObjectStore, RunPaths
from common.parts.opening import datasets_line, duckdb_line
from common.s3 import open_store
from common.settings import load_settings
from deploy.results import download
from tests.support import mixture
from tests.support.fleet import SHORT_LEASES, Fleet
from tests.support.producers import Producer
from tests.support.servers import eventually_sync
from tests.support.trainer import COMMAND

RUN, CHILD = RunName("mixed"), RunName("mixed-truncated")
SAMPLES, LIMIT, HIGHER = 2, 4, 16
SECONDS = 300
FLAGGED = "--include=truncated"

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@dataclass
class Mixed:
    """The finished run and its child, and what was said on the way there."""

    env: dict[str, str]
    settings: Any
    store: ObjectStore
    rows: int
    loaded: dict[str, Any]
    notes: str
    held: dict[str, Any]
    parts: Path

    @property
    def items(self) -> int:
        return self.rows * SAMPLES


def said(fleet, *words, code=Exit.DONE):
    done = fleet.producer(*words)
    assert done.returncode == code, (words, done.stdout, done.stderr, fleet.last_words())
    return done


def finished(fleet, store, run):
    """Wait for a run's end; one that is held is looked at, and accepted. Return those looks."""
    held: list[dict[str, Any]] = []
    success = RunPaths(run).success

    def over_or_held():
        time.sleep(0.3)  # poll: a look costs as much as an answer does
        counts = fleet.counts(run)
        stands = counts.state == "held" and counts.queued and not counts.leased
        return store.stat(success) or stands

    while eventually_sync(over_or_held, SECONDS) is True:
        assert store.stat(success) is None
        held.append(json.loads(said(fleet, "status", run, "--json").stdout))
        said(fleet, "resume", run, "--accept")
    return held


def make(fleet, store, settings, folder, *, copies=1):
    """Load, generate, redo what was cut off; all services are ended at the end."""
    rows = mixture.write_mixture(folder / "mixed.jsonl", copies=copies)
    consume = ("--engine", "llamacpp", "--model", "smollm2", "--max-running", "8")
    fleet.start("consumer", "gen-consumer", *consume, "--context", str(mixture.CONTEXT))
    fleet.start("sink", "gen-sink", "--seconds", "1", "--rows", "17")
    limits = ("--samples", str(SAMPLES), "--max-tokens", str(LIMIT), "--seed", "5")
    loaded = said(
        fleet, "load", str(folder / "mixed.jsonl"), "--run", RUN, "--model", "smollm2", *limits,
        "--context", str(mixture.LOADED_CONTEXT), "--on-error", "skip", "--json",
    )  # fmt: skip
    held = finished(fleet, store, RUN)
    assert len(held) == 1
    said(fleet, "requeue", RUN, "--reason", "truncated", "--max-tokens", str(HIGHER))
    finished(fleet, store, CHILD)
    told = json.loads(loaded.stdout)
    files = download(store, RUN, folder / "results")
    return Mixed(fleet.env, settings, store, rows, told, loaded.stderr, held[0], files[0].parent)


def made(redis_session, s3_server, folder, **more):
    with redis.Redis.from_url(redis_session.url) as client:
        client.flushall()  # a sink serves whatever runs are there
    chosen = s3_server.settings(prefix=f"t{secrets.token_hex(6)}")
    settings = load_settings(redis_url=redis_session.url, state_dir=folder / "state", **chosen)
    env = {f"GENQ_{name.upper()}": str(value) for name, value in chosen.items()}
    env |= {"GENQ_REDIS_URL": redis_session.url, "GENQ_STATE_DIR": str(folder / "state")}
    # The engine's honesty has tests of its own; here each start of it would cost some seconds.
    env |= {"GENQ_HONESTY": "false"}
    fleet = Fleet({**os.environ, **SHORT_LEASES, **env}, folder)
    try:
        return make(fleet, open_store(settings), settings, folder, **more)
    finally:
        fleet.close()
        eventually_sync(lambda: not fleet.leftovers(), 15)


@pytest.fixture(scope="module")
def mixed(_redis_session, s3_server, tmp_path_factory):
    return made(_redis_session, s3_server, tmp_path_factory.mktemp("mixed"))


@pytest.fixture
def producer(mixed, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return Producer(mixed.env, monkeypatch, capsys)


def table(mixed, columns):
    query = f"SELECT {columns} FROM read_parquet('{mixed.parts}/*.parquet') ORDER BY k"
    return duckdb.sql(query).fetchall()


def test_what_cannot_be_used_is_named_and_the_rest_is_loaded(mixed):
    assert mixed.loaded["rows"] == mixed.rows
    assert mixed.loaded["skipped_by_class"] == {"bad_row": 6, "too_long": 1}
    places = [(one["line"], one["class"]) for one in mixed.loaded["faults"]]
    assert places == [(n, "bad_row") for n in range(9, 15)] + [(15, "too_long")]
    assert "1 rows with lone surrogates (each became U+FFFD)" in mixed.notes
    assert "2 rows whose id an earlier row has (each is answered)" in mixed.notes


def test_a_run_whose_first_rows_were_cut_off_was_held_and_showed_some(mixed):
    assert mixed.held["state"] == "held"
    assert mixed.held["canary"]["worst"] == "truncated"
    assert len(mixed.held["examples"]) == 2
    assert mixed.held["canary"]["classes"]["truncated"] >= mixed.items // 4


def prove_all_agree(mixed, producer):
    """The proof, the report, the dead letters and DuckDB must count alike."""
    proof = json.loads(producer("verify", RUN, "--allow-failures", "--json").out)
    assert (proof["proven"], proof["problems"]) == (True, [])
    dead = 2 * mixed.rows // len(mixture.GOOD)
    assert (proof["committed"], proof["dead"]) == (mixed.items - dead, dead)
    assert producer("verify", RUN, code=Exit.DEAD_LETTERS)
    assert json.loads(producer("verify", CHILD, "--json").out)["proven"]
    verdicts = Counter(verdict for (verdict,) in table(mixed, "verdict"))
    assert verdicts == proof["verdicts"]
    assert verdicts["ok"]
    assert verdicts["truncated"] > mixed.items // 2

    found = json.loads(producer("report", RUN, "--json").out)
    assert {one["verdict"]: one["kept"] for one in found["classes"] if one["kept"]} == verdicts
    assert {one["verdict"]: one["dead"] for one in found["classes"] if one["dead"]} == {
        "too_long": dead
    }
    assert (found["progress"]["committed"], found["progress"]["open"]) == (mixed.items - dead, 0)
    tokens = [n for (n,) in table(mixed, "usage.completion_tokens")]
    turns = [turn["usage"]["completion_tokens"] for turn in turns_of(mixed)]
    assert found["longest"]["tokens"] == max(tokens + turns)
    assert found["tokens"]["completion"] == sum(tokens) + sum(turns)
    letters = [json.loads(line) for line in mixed.store.get(RunPaths(RUN).failed).splitlines()]
    assert {letter["row"] % len(mixture.GOOD) for letter in letters} == {mixture.LONG}
    assert all("1024" in letter["text"] for letter in letters)


def turns_of(mixed):
    return [turn for (turns,) in table(mixed, "turns") for turn in json.loads(turns or "[]")]


def test_proof_report_dead_letters_and_duckdb_count_alike(mixed, producer):
    prove_all_agree(mixed, producer)


def test_each_row_is_what_it_was_and_each_sample_has_a_seed_of_its_own(mixed):
    rows = table(mixed, "row, row_id, sample, seed, messages, metadata, output_ids, sampling")
    ids = [row[1] or None for row in rows if row[2] == 0]
    assert ids == [
        "batch", "system", "7000", "1.5", "true", '["a",1]', '{"k":1}', None, "twice", "twice",
        "equal", "equal", mixture.ODD, "half", "own", "sampled", "tool", "zero", "marks",
    ]  # fmt: skip
    assert len({row[3] for row in rows}) == len(rows) == SAMPLES * mixture.LONG
    last = {row[1]: row[4][-1]["content"] for row in rows}
    assert last[mixture.ODD] == mixture.ODD
    assert last["half"] == "half \ufffd an emoji"
    assert last["zero"] == "A zero byte: \x00."
    assert last["tool"] == "Sunny."
    kept = {row[1]: json.loads(row[5]) for row in rows if row[5]}
    assert kept["own"]["reference"] == "The row's own answer"
    assert kept["7000"] == {"source": "chats"}
    assert kept["1.5"]["category"] == "colours"
    assert kept[mixture.ODD]["note"] == mixture.ODD
    assert all(1 <= len(row[6]) <= 4 for row in rows if row[1] == "batch")
    told = "\n".join(message["content"] for row in rows for message in row[4])
    assert "An answer that is replaced" not in told
    assert len(turns_of(mixed)) == 2 * SAMPLES


def test_the_printed_lines_open_the_output(mixed, tmp_path, monkeypatch):
    glob = f"{mixed.parts}/*.parquet"
    shown = duckdb.sql(duckdb_line(glob, "parquet")).fetchall()
    assert len(shown) == SAMPLES * mixture.LONG
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    loaded = eval(datasets_line(glob, "parquet"), {"datasets": datasets})
    columns = sorted(zip(loaded["k"], loaded["output_ids"], loaded["content"], strict=True))
    assert [(k, list(ids), text) for k, ids, text in columns] == table(
        mixed, "k, output_ids, content"
    )


def best_of(mixed):
    """For each item the child's completion where it is ok, else the run's: read by themselves."""
    own = {one.k: one for one in Family.of(mixed.store, CHILD).completions()}
    family = {one.k: one for one in Family.of(mixed.store, RUN).completions()}
    cut = [k for k, verdict in table(mixed, "k, verdict") if verdict == "truncated"]
    assert len(own) == len(cut)
    redone = {k: own[n] for n, k in enumerate(cut)}
    better = [k for k in cut if redone[k].verdict == "ok"]
    assert better, "no answer ended within the higher limit: this shows nothing"
    for k, one in family.items():
        if k in better:
            assert one.output_ids == redone[k].output_ids
            assert (one.row, one.sample, one.sampling.max_tokens) == (*divmod(k, SAMPLES), HIGHER)
        else:
            assert one.verdict == ("truncated" if k in cut else "ok")
            assert len(one.output_ids) <= max(LIMIT, 40)
    return family


def lines(path):
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def test_all_exports_take_the_child_and_hold_what_was_generated(mixed, producer):
    family = best_of(mixed)
    good = [one for one in family.values() if one.verdict == "ok"]
    for form in ("specforge", "messages", "openai-batch"):
        producer("export", RUN, "--to", form, f"{form}.jsonl")
    producer("export", RUN, "--to", "speculators", "ids.jsonl.gz", FLAGGED)
    answers = sorted(one.content for one in good)
    spoken = [row["conversations"] for row in lines(Path("specforge.jsonl"))]
    assert sorted(talk[-1]["content"] for talk in spoken) == answers
    assert all(isinstance(one["content"], str) for talk in spoken for one in talk)
    assert all("reasoning_content" in talk[-1] for talk in spoken)
    told = [row["messages"][-1] for row in lines(Path("messages.jsonl"))]
    assert sorted(message["content"] for message in told) == answers
    batch = [row["response"]["body"]["choices"][0] for row in lines(Path("openai-batch.jsonl"))]
    assert sorted(choice["message"]["content"] for choice in batch) == answers
    assert len(lines(Path("openai-batch.errors.jsonl"))) == mixed.items - len(good)
    single = sorted(one.input_ids + one.output_ids for one in family.values() if not one.turns)
    masked = [(row["input_ids"], row["loss_mask"]) for row in lines(Path("ids.jsonl.gz"))]
    assert all(len(ids) == len(mask) and 1 in mask for ids, mask in masked)
    assert [ids for ids in single if ids not in [one for one, _ in masked]] == []
    said = sum(len(one.output_ids) for one in family.values())
    said += sum(len(turn.output_ids) for one in family.values() for turn in one.turns)
    assert sum(sum(mask) for _, mask in masked) == said


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None and not os.environ.get("GENQ_TEST_TORCH"),
    reason=f"torch is not installed; get it with: {COMMAND}",
)
def test_the_tensors_of_a_trainer_are_the_engines_ids(mixed):
    from common.training import CompletionDataset  # noqa: PLC0415 - torch is not everywhere

    family = best_of(mixed)
    given = CompletionDataset(
        RUN, settings=mixed.settings, verdicts=("ok", "truncated"), rank=0, world_size=1
    )
    tensors = [{name: value.tolist() for name, value in one.items()} for one in given]
    single = [one for one in family.values() if not one.turns]
    for one in single:
        length = len(one.input_ids) + len(one.output_ids)
        mask = [0] * len(one.input_ids) + [1] * len(one.output_ids)
        assert {
            "input_ids": one.input_ids + one.output_ids,
            "attention_mask": [1] * length,
            "loss_mask": mask,
        } in tensors
    said = sum(len(one.output_ids) for one in family.values())
    said += sum(len(turn.output_ids) for one in family.values() for turn in one.turns)
    assert sum(sum(one["loss_mask"]) for one in tensors) == said


@pytest.mark.slow
def test_the_same_with_six_times_as_many_rows(request, s3_server, tmp_path, monkeypatch, capsys):
    session = request.getfixturevalue("_redis_session")
    mixed = made(session, s3_server, tmp_path, copies=6)
    prove_all_agree(mixed, Producer(mixed.env, monkeypatch, capsys))
    best_of(mixed)
