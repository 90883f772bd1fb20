"""`gen-producer report` on a planted run: exact numbers, from storage, in JSON and on the page."""

from __future__ import annotations

import asyncio
import html
import io
import json
import re
import secrets
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from common import codec
from common.errors import DeadLettersError
from common.ids import RunName, new_nonce
from common.objectstore import RunPaths
from common.parts import SUFFIXES, codec_for
from common.queue.prompts import PromptQueue
from common.queue.run_state import Runs
from common.records import Failure, Finished, Sampling, Usage, Verdict
from common.redis_client import open_client
from common.s3 import open_store
from common.settings import load_settings
from consumer.sink.batcher import Bounds
from producer.console import Console
from producer.report.command import run_report
from tests.support.chromium import browser, find_chromium
from tests.support.committed import store_committed
from tests.support.completions import completion, payload
from tests.support.producers import Producer
from tests.support.runs import store_run
from tests.support.servers import eventually
from tests.support.sinks import WORKER, Job, local_lab

RUN = RunName("planted")
ROWS, TRUNCATED, EMPTY = 1000, 350, 20
LIMIT = 512
NASTY = "<script>alert('row')</script> $x^2$ & \u202e"
NOWHERE = "redis://127.0.0.1:9/0"


@dataclass
class Planted:
    """A finished run, and what the report said of it while Redis was there."""

    env: dict[str, str]
    settings: Any
    with_redis: dict[str, Any]


def plant(k: int):
    """One completion: of 980, 350 are cut off at the limit, and every second one has a thought."""
    cut = k % 28 < 10
    tokens = LIMIT if cut else 40 + k % 400
    return completion(
        k,
        row_id=NASTY if k == 0 else f"row {k}",
        verdict="truncated" if cut else "ok",
        finish_reason="length" if cut else "stop",
        usage=Usage(30, tokens, 0, 20 if k % 2 else 0),
        sampling=Sampling(max_tokens=LIMIT, seed=k),
        worker=f"node-1-gpu{k % 2}-{100 + k % 3}-ab12",
        started=f"2026-01-01T00:{k // 60:02}:{k % 60:02}+00:00",
        seconds=10.0,
        attempt=2 if k == 5 else 1,
    )


async def load(settings) -> Job:
    """Load the run with a limit, as the producer does."""
    client, store = open_client(settings, name="tests"), open_store(settings)
    manifest = store_run(store, RUN, rows=ROWS)
    told = replace(manifest.settings, sampling=Sampling(max_tokens=LIMIT, temperature=0.5))
    manifest = replace(manifest, settings=told)
    store.put(RunPaths(RUN).run_json, codec.dumps(manifest))
    runs = Runs(client, settings.limits())
    info = await runs.create(manifest)
    queue = PromptQueue(client, info.run, info.epoch, settings.limits())
    await queue.enqueue(0)
    await runs.open(info.run)
    return Job(client, store, runs, queue, manifest, info)


async def answer(job: Job) -> None:
    """Answer 980 items, and find 20 to be empty for good."""
    leased = await job.lease(ROWS)
    while more := await job.lease(ROWS):
        leased += more
    batch = [
        Finished(item, token, Verdict(one.verdict), payload(one), 30, one.usage.completion_tokens)
        for item, token in leased[: ROWS - EMPTY]
        for one in [plant(item)]
    ]
    for at in range(0, len(batch), 32):
        await job.queue.complete(WORKER, batch[at : at + 32], request=new_nonce())
    failures = [
        Failure(item, token, Verdict.EMPTY, "no text in 3 tokens", charged=True, final=True,
                completion_tokens=3)
        for item, token in leased[ROWS - EMPTY :]
    ]  # fmt: skip
    await job.queue.fail(WORKER, failures)


async def finish(settings) -> None:
    job = await load(settings)
    async with local_lab(settings, job) as lab:
        await answer(job)
        with pytest.raises(DeadLettersError):
            await lab.finish(bounds=Bounds(rows=300, seconds=1), suffix="parquet")


@pytest.fixture(scope="module")
def planted(_redis_session, s3_server, tmp_path_factory):
    """The run, written by the real queue and sink; afterwards Redis is not asked any more."""
    with redis.Redis.from_url(_redis_session.url) as client:
        client.flushall()  # a sink serves whatever runs are there
    folder = tmp_path_factory.mktemp("planted")
    chosen = s3_server.settings(prefix=f"t{secrets.token_hex(6)}")
    settings = load_settings(redis_url=_redis_session.url, state_dir=folder, **chosen)
    asyncio.run(finish(settings))
    env = {f"GENQ_{name.upper()}": value for name, value in chosen.items()}
    made = Planted({**env, "GENQ_REDIS_URL": NOWHERE}, settings, {})
    made.with_redis.update(report_json(settings))
    return made


def report_json(settings) -> dict[str, Any]:
    """Return what the command says, in this process and with these settings."""
    with redirect_stdout(io.StringIO()) as said:
        run_report(RUN, settings, Console(json=True), out=None, price=None, examples=False)
    return json.loads(said.getvalue())


@pytest.fixture
def producer(planted, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return Producer(planted.env, monkeypatch, capsys)


def classes(found):
    return {one["verdict"]: (one["kept"], one["dead"], one["share"]) for one in found["classes"]}


def test_the_planted_shares_are_told_exactly(producer):
    found = json.loads(producer("report", RUN, "--json", "--price", "3.6").out)
    assert classes(found) == {
        "ok": (ROWS - TRUNCATED - EMPTY, 0, 0.63),
        "truncated": (TRUNCATED, 0, 0.35),
        "empty": (0, EMPTY, 0.02),
    }
    assert found["longest"] == {"tokens": LIMIT, "k": 0, "row_id": NASTY, "cut": True}
    limit = found["limit"]
    assert (limit["run_max_tokens"], limit["cut"], limit["share"]) == (LIMIT, TRUNCATED, 0.35)
    assert limit["limits"] == [{"max_tokens": LIMIT, "completions": 980, "cut": TRUNCATED}]
    assert found["progress"] | {"state": ""} == {
        "state": "", "items": ROWS, "committed": 980, "dead": EMPTY, "open": 0, "in_stream": 0,
        "hold_reason": "", "lost": 0,
    }  # fmt: skip
    assert found["progress"]["state"] == "finished"
    cut = [one for one in found["lengths"]["bins"] if one["cut"]]
    assert [(one["up_to"], one["cut"]) for one in cut] == [(LIMIT, TRUNCATED)]
    assert found["lengths"]["tokens"] == sum(plant(k).usage.completion_tokens for k in range(980))
    assert (found["thinking"]["completions"], found["thinking"]["thought_tokens"]) == (490, 9800)
    assert found["waste"]["retried"] == 1
    assert "Redis could not be asked" in found["notes"][0]
    # Two GPUs that were busy from the first second to the last, 3.6 an hour each.
    assert {w["worker"] for w in found["throughput"]["workers"]} == {"node-1-gpu0", "node-1-gpu1"}
    assert found["cost"]["gpu_seconds"] == pytest.approx(2 * 988)
    assert found["cost"]["cost"] == pytest.approx(2 * 988 / 1000)
    tokens = sum(found["throughput"]["total"]) * found["throughput"]["bin_seconds"]
    assert tokens == pytest.approx(found["tokens"]["completion"], rel=1e-3)


def test_what_only_redis_knew_is_told_by_the_finished_run(planted, producer):
    alone = json.loads(producer("report", RUN, "--json").out)
    assert planted.with_redis["waste"]["tokens"] == 3 * EMPTY
    assert planted.with_redis["failures"]["tries_by_class"] == {"empty": EMPTY}
    assert planted.with_redis["notes"] == []
    for found in (alone, planted.with_redis):
        for name in ("made", "notes"):
            del found[name]
    assert alone == planted.with_redis


def test_examples_show_prompts_only_when_asked(producer):
    plain = json.loads(producer("report", RUN, "--json").out)["failures"]
    assert plain["dead_from"] == "failed.jsonl"
    told = [(one["verdict"], one["kept"], one["k"], one["reason"]) for one in plain["examples"]]
    assert told[0] == ("empty", False, 980, "no text in 3 tokens")
    assert told[3] == ("truncated", True, 0, "cut off at 512 tokens; the limit was 512")
    assert len(told) == 6
    assert all(one["prompt"] is None and one["answer"] is None for one in plain["examples"])
    shown = json.loads(producer("report", RUN, "--json", "--examples").out)["failures"]["examples"]
    assert (shown[0]["prompt"], shown[0]["answer"]) == ("Say 980.", None)
    assert (shown[3]["prompt"], shown[3]["answer"]) == ("Say 0.", "answer to 0")


def test_the_json_is_described_field_by_field(producer):
    found = json.loads(producer("report", RUN, "--json").out)
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`([a-z_0-9]+)`", page))
    free = {"settings", "engines", "models", "genq_versions", "tries_by_class"}

    def names(value, inside=""):
        if isinstance(value, dict) and inside not in free:
            for name, one in value.items():
                yield name
                yield from names(one, name)
        elif isinstance(value, list):
            for one in value:
                yield from names(one, inside)

    assert set(names(found)) <= described
    assert found["version"] == 1


@pytest.fixture(scope="module")
def chromium():
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium: `make setup` installs it where it may (root, apt-get)")
    with browser(program) as running:
        yield running


@pytest.fixture(scope="module")
def page(planted, tmp_path_factory):
    """The page, written without Redis, and what the command said of it."""
    path = tmp_path_factory.mktemp("page") / "planted.html"
    settings = planted.settings.model_copy(update={"redis_url": SecretStr(NOWHERE)})
    with redirect_stdout(io.StringIO()) as said:
        run_report(RUN, settings, Console(), out=str(path), price=3.6, examples=True)
    assert said.getvalue().endswith(f"The page: {path}\n")
    assert "The longest completion has 512 tokens, and 35.0 % were cut off" in said.getvalue()
    return path


def test_the_page_names_nothing_outside_itself(page):
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert html.escape(NASTY, quote=False).replace("'", "&#39;") in text
    links = re.findall(r"""(?:src|href)=["']?([^"'> ]*)""", text)
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "url(" not in text.replace("url(#", "")
    assert "@import" not in text
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(names) == len(set(names))
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(names)
    assert len(text) < 400_000


def test_the_page_in_a_browser_asks_for_nothing_and_complains_of_nothing(chromium, page):
    for width, dark, media in ((1200, False, ""), (400, True, ""), (794, False, "print")):
        seen = chromium.open(page.as_uri(), width=width, dark=dark, media=media)
        assert seen.complaints == []
        assert seen.requests == [page.as_uri()]
        assert seen.overflow <= 0
        words = " ".join(seen.text.split())
        assert "The longest completion has 512 tokens" in words
        assert "35.0 % were cut off at the limit of 512: 350 of 1,000" in words
        assert re.search(r"truncated cut off at the token limit 35\.0 % 350 0", words)
        assert re.search(r"empty no text at all 2\.0 % 0 20", words)
        assert NASTY.split(" ", maxsplit=1)[0] in words
        assert seen.shot.startswith(b"\x89PNG")


def test_the_browser_does_notice_what_the_page_must_not_do(chromium, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<img src='missing.png'><script>console.error('x'); nope()</script>")
    seen = chromium.open(page.as_uri())
    assert len(seen.requests) == 2
    assert len(seen.complaints) >= 2


async def stored(job, count) -> bool:
    return (await job.counts()).committed == count


async def test_a_run_that_goes_on_shows_what_is_committed_so_far(settings):
    job = await load(settings)
    async with local_lab(settings, job) as lab:
        leased = await job.lease(40)
        await job.answer(leased[:10], verdict="empty", usage=Usage(3, 0))
        await job.bury(leased[10:13])
        sink = lab.start(lab.finish(bounds=Bounds(rows=5, seconds=1), suffix="jsonl.zst"))
        await eventually(lambda: stored(job, 10))
        found = await asyncio.to_thread(report_json, settings)
        lab.stop.set()
        await asyncio.gather(sink, return_exceptions=True)
    assert found["progress"] == {
        "state": "open", "items": ROWS, "committed": 10, "dead": 3, "open": ROWS - 13,
        "in_stream": 0, "hold_reason": "", "lost": 0,
    }  # fmt: skip
    assert classes(found) == {"empty": (10, 0, 10 / 13), "too_long": (0, 3, 3 / 13)}
    assert found["failures"]["dead_from"] == "redis"
    dead = [one for one in found["failures"]["examples"] if not one["kept"]]
    assert [(one["k"], one["row_id"], one["reason"]) for one in dead] == [
        (int(leased[at][0]), f"row {leased[at][0]}", "too long") for at in (10, 11, 12)
    ]
    assert found["longest"]["tokens"] == 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_no_part_of_the_run_is_not_counted(planted, producer, suffix):
    store, run = open_store(planted.settings), f"strays-in-{suffix.partition('.')[0]}"
    store_committed(store, run, [[completion(0)]], suffix=suffix)
    other = next(one for one in SUFFIXES if one != suffix)
    stray = codec_for(other).encode([completion(0), completion(1)], "another")
    for name in (f"part-00000003.{other}", f"part-00000003.{suffix}.bak", "part-3"):
        store.put(f"{run}/data/{name}", stray)
    found = json.loads(producer("report", run, "--json").out)
    assert classes(found) == {"ok": (1, 0, 1.0)}


def test_a_run_without_a_completion_has_a_page_too(planted, producer, tmp_path):
    store_run(open_store(planted.settings), RunName("fresh"), rows=3)
    said = producer("report", "fresh").out
    assert "Nothing is committed yet" in said
    assert "Nothing is committed yet" in (tmp_path / "fresh-report.html").read_text()


def test_what_cannot_be_is_refused_with_a_way_out(producer, tmp_path, monkeypatch):
    assert "There is no run nobody" in producer("report", "nobody", code=2).err
    taken = tmp_path / "folder"
    taken.mkdir()
    assert "cannot be written" in producer("report", RUN, "--out", taken, code=2).err
    assert list(tmp_path.iterdir()) == [taken]
    assert "both" in producer("report", RUN, "--json", "--out", "-", code=2).err
    nowhere = producer("report", RUN, "--out", tmp_path / "no" / "r.html", code=2).err
    assert f"mkdir -p {tmp_path}/no " in nowhere
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [name for name in sys.modules if name.startswith("producer.report.figures")]:
        monkeypatch.delitem(sys.modules, name)
    said = producer("report", RUN, code=2).err
    assert "pip install '.[report]'" in said
