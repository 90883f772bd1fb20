"""Data sets and loads that go wrong: rows F of the fault matrix that no other test has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from common import codec
from common.build import build
from common.errors import Exit
from common.ids import RunName
from common.objectstore import RunPaths
from common.prove import read_manifest
from common.records import Row
from consumer.leases import fetcher
from tests.support.failpoints import one_now
from tests.support.fake_engine import running_fake, set_faults
from tests.support.producers import COMMAND
from tests.support.servers import eventually

if TYPE_CHECKING:
    from common.objectstore import ObjectStore

RUN = "rows"
LOAD = ("load", "--model", "m", "--run", RUN)
row = pytest.mark.row


def stored_rows(store: ObjectStore) -> list[Row]:
    manifest = read_manifest(store, RunName(RUN))
    paths, rows = RunPaths(RunName(RUN)), []
    for number in range(len(manifest.shards)):
        packed = store.get(paths.prompts(manifest.fingerprint, number))
        lines = codec.decompress(packed, limit_bytes=2**26).split(b"\n")[:-1]
        rows += [build(Row, codec.loads(line)) for line in lines]
    return rows


def counts(producer) -> dict[str, int]:
    return json.loads(producer("status", RUN, "--json").out)["counts"]


@row("F1")
@pytest.mark.parametrize("name", one_now(["load.after_create", "load.after_chunk"]))
def test_a_load_that_was_killed_and_paused_is_loaded_whole_and_stays_paused(
    producer, tmp_path, name
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "x"}\n' * 2500)
    producer.killed_at(name, *LOAD, path)
    producer("pause", RUN)
    assert counts(producer)["loaded"] < 2500
    done = json.loads(producer(*LOAD, path, "--json").out)
    assert done["outcome"] == "continued"
    assert counts(producer) | {"queued": 2500, "loaded": 2500} == counts(producer)
    assert f"{RUN}  paused" in producer("status", RUN).out
    producer("resume", RUN)
    assert f"{RUN}  stalled: no consumer" in producer("status", RUN).out
    assert json.loads(producer(*LOAD, path, "--json").out)["outcome"] == "already"


@row("F6")
@pytest.mark.timeout(180)
def test_a_data_set_far_larger_than_the_memory_it_takes(service_env, producer, tmp_path) -> None:
    """200 MB in rows of 200 kB; a row beyond the limit is refused with its place."""
    path = tmp_path / "large.jsonl"
    line = json.dumps({"prompt": "what is it? " * 17_000}).encode() + b"\n"
    with path.open("wb") as file:
        for _ in range(1000):
            file.write(line)
    # Not ru_maxrss: that begins with what the parent had when it started the child.
    watched = "import atexit; atexit.register(lambda: print(open('/proc/self/status').read())); "
    command = [sys.executable, "-c", watched + COMMAND[2], *LOAD, str(path)]
    done = subprocess.run(
        command, env=service_env, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1]) * 1024
    assert peak < 180e6 < path.stat().st_size
    with path.open("wb") as file:
        file.write(b'{"prompt": "a"}\n{"prompt": "' + b"x" * (11 << 20) + b'"}\n')
    refused = producer("load", path, "--model", "m", "--run", "giant", code=Exit.INPUT)
    assert "large.jsonl:2" in refused.err


STRANGE_IDS = [
    "../../etc/passwd",
    "/",
    "a b\tc",
    "x" * 10_000,
    "\u202eevil\u0000\u0007",
    "*",
    "rows-1",
    "\U0001f600é",
    "same",
    "same",
]


@row("F8")
@row("F9")
def test_ids_of_any_kind_are_data_and_no_key_is_made_of_them(
    producer, tmp_path, store, redis_url
) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"id": name, "prompt": "same question"}) for name in STRANGE_IDS]
    path.write_text("\n".join(lines))
    said = producer(*LOAD, path)
    assert "1 rows whose id an earlier row has (each is answered)" in said.err
    assert [one.id for one in stored_rows(store)] == STRANGE_IDS
    assert counts(producer)["queued"] == len(STRANGE_IDS)
    keys = [found.key for found in store.list("")]
    assert all(
        re.fullmatch(r"rows/(run\.json|prompts/[0-9a-f]+/\d{6}\.jsonl\.zst)", k) for k in keys
    )


@row("F7")
@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b'{"prompt": "a"}\n{"prompt": "b\xff"}\n', "rows.jsonl:2"),
        (b'{"prompt": "a"}\n{"prompt": NaN}\n', "rows.jsonl:2"),
        (b"\n\n", "no row that can be used"),
        (b"", "no row that can be used"),
        (codec.compress(b'{"prompt": "a"}\n' * 500)[:-9], "rows.jsonl"),
    ],
)
def test_a_broken_file_is_refused_with_the_place_and_code_3(
    producer, tmp_path, store, data, place
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data)
    assert place in producer(*LOAD, path, code=Exit.INPUT).err
    assert list(store.list("")) == []


@row("F7")
def test_what_other_systems_write_is_read(producer, tmp_path, store) -> None:
    """A byte order mark, Windows' line ends, a blank line, two frames, no end of the last line."""
    path = tmp_path / "rows.jsonl.zst"
    first = b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n'
    path.write_bytes(codec.compress(first) + codec.compress(b'{"prompt": "b"}'))
    producer(*LOAD, path)
    assert [one.messages[0]["content"] for one in stored_rows(store)] == ["a", "b"]


@row("F4")
async def test_a_row_that_the_engine_always_refuses_ends_dead_and_can_be_queued_again(
    world,
) -> None:
    await world.load(20, texts={7: "poison"})
    async with running_fake(world.folder, api_key="") as engine:
        await set_faults(engine, refuse_text="poison")
        assert await world.burst(url=engine.url) == Exit.DONE
        seen = await world.counts()
        assert (seen.generated, seen.dead, seen.failures) == (19, 1, {"content_error": 3})
        (dead,) = await world.runs.failures("one", limit=5)
        assert (dead.item, dead.verdict) == (7, "content_error")
        assert "this prompt cannot be served" in dead.text
        await set_faults(engine, refuse_text="")
        assert await world.runs.requeue(RunName("one")) == 1
        assert await world.burst(url=engine.url) == Exit.DONE
    assert sorted(r["k"] for r in world.results()) == list(range(20))


@row("F5")
async def test_a_row_too_long_for_the_model_is_dead_at_once_with_both_counts(world) -> None:
    await world.load(5, texts={2: "word " * 1000})
    async with running_fake(world.folder, api_key="") as engine:
        assert await world.burst(url=engine.url) == Exit.DONE
    seen = await world.counts()
    assert (seen.generated, seen.dead, seen.failures) == (4, 1, {"too_long": 1})
    (dead,) = await world.runs.failures("one", limit=5)
    assert re.search(r"the prompt has 5\d{3} tokens, and the engine takes 4096", dead.text)


@row("F13")
async def test_a_prompt_shard_that_vanished_is_named_and_its_return_is_noticed(
    world, monkeypatch
) -> None:
    monkeypatch.setattr(fetcher, "UNREADABLE_SECONDS", 0.3)
    said: list[dict] = []
    words = SimpleNamespace(warning=lambda text, **fields: said.append({"text": text, **fields}))
    monkeypatch.setattr(fetcher, "log", words)
    queue = await world.load(10)
    manifest = read_manifest(world.store, RunName("one"))
    key = RunPaths(RunName("one")).prompts(manifest.fingerprint, 0)
    shard = world.store.get(key)
    world.store.delete(key)
    async with running_fake(world.folder, api_key="") as engine, world.serving(url=engine.url):
        await eventually(lambda: len(said) > 1, 40)
        world.store.put(key, shard)
        await world.generated(10)
    assert said[0]["text"] == "prompts cannot be read; leases released"
    assert key in said[0]["what"]
    assert sorted(r["k"] for r in world.results()) == list(range(10))
    assert {r["attempt"] for r in world.results()} == {1}
    assert (await world.counts()).dead == 0
    assert await world.lease_all(queue, 10) == []
