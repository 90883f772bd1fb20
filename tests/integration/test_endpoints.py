"""The endpoints of exporter, consumer and sink as Prometheus sees them: real parts, real pages."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, suppress

import pytest
from rq import Queue
from rq.serializers import JSONSerializer
from structlog.testing import capture_logs

from common.errors import EpochError, QueueError, StoreError, UsageError
from common.keys import RUNS
from common.queue.scripts import explain
from common.settings import load_settings
from common.telemetry.catalogue import CONSUMER, EXPORTER, SINK
from common.telemetry.metrics import render
from consumer.reporter import Worker
from consumer.sink.figures import Figures
from consumer.sink.metrics import SinkMetrics
from consumer.sink.outage import Outage
from consumer.sink.service import SinkService
from consumer.sink.start import run_sink
from deploy.embedded import free_ports
from producer.console import Console
from producer.exporter import Exporter, run_exporter
from producer.status.data import Watcher
from producer.status.state import eta
from tests.support.consumers import world_of
from tests.support.fake_engine import running_fake
from tests.support.pages import Page, fetch
from tests.support.queues import ONE, RUN
from tests.support.servers import eventually, eventually_sync
from tests.support.sinks import load_job, local_lab
from tests.support.tools import accepted

PROGRAM = "from producer.cli import main; main()"
FIGURES = {
    "host": "node7.cluster", "gpu": "3", "engine": "ready", "model": "m", "engine_starts": "2",
    "tokens_per_second": "1500.5", "in_flight": "80", "window": "96",
}  # fmt: skip


def page_of(read):
    return Page(render(read)[0].decode())


def snapshot(client):
    return {key: (client.dump(key), client.ttl(key) >= 0) for key in client.keys("*")}


@pytest.fixture
def seen(redis_url, bench):
    """A function that takes a look at the bench's Redis as the exporter does."""

    @asynccontextmanager
    async def exporter():
        yield Exporter(bench.client, load_settings(redis_url=redis_url))

    async def look():
        async with exporter() as one:
            await one.look()
            return page_of(one.read())

    return look


def lint(page):
    """Let promtool, where it is, look at a page: help, units and suffixes as they should be."""
    with suppress(pytest.skip.Exception):
        assert accepted("promtool", "check", "metrics", input=page.text) == ""


# --- the exporter


async def test_the_exporter_shows_where_each_item_is_and_changes_nothing(bench, seen):
    await bench.load(20)
    leased = await bench.lease(6)
    await bench.complete(leased[:2])
    await bench.fail(leased[2:3])
    await bench.fail(leased[3:4], final=True)
    await bench.runs.set_gauges(ONE, FIGURES, 60)
    before = snapshot(bench.sync)
    page = await seen()
    assert snapshot(bench.sync) == before
    page.agrees_with(EXPORTER)
    lint(page)
    places = ("queued", "waiting", "leased", "generated", "committed", "dead")
    assert [page("genq_run_items", run=RUN, place=place) for place in places] == [14, 1, 2, 2, 0, 1]
    assert page("genq_run_size_items", run=RUN) == 20
    assert page("genq_run_results_total", run=RUN, verdict="ok") == 2
    assert page("genq_run_failed_tries_total", run=RUN, **{"class": "empty"}) == 2
    assert page("genq_run_failed_tries_total", run=RUN, **{"class": "ok"}) is None
    assert page("genq_run_completion_tokens_total", run=RUN) == 2
    assert page("genq_run_status", run=RUN, status="stalled") == 1, "nobody serves it"
    assert page("genq_run_status", run=RUN, status="generating") == 0
    assert page("genq_run_problems", run=RUN) == 0
    assert page("genq_run_since_commit_seconds", run=RUN) is None, "never is not zero"
    assert page("genq_redis_memory_used_bytes") > 0
    assert page("genq_exporter_up") == 1


async def test_the_exporter_shows_the_fleet_by_places_that_outlive_a_restart(bench, seen):
    await bench.load(2)
    names = ("node7-gpu3-11-aa", "node7-gpu3-22-bb", "node8-cpu-1-cc", "node8-cpu-2-dd")
    for name in names:
        worker = Worker(
            [Queue(RUN, connection=bench.sync, serializer=JSONSerializer)],
            name=name,
            connection=bench.sync,
            serializer=JSONSerializer,
        )
        worker.register_birth()
        if name == names[0]:
            continue  # it was killed: its record lives on for a while, its figures do not
        cpu = {"host": "node8", "gpu": ""} if "cpu" in name else {}
        await bench.runs.set_gauges(name, FIGURES | cpu, 60)
    page = await seen()
    assert page("genq_run_workers", run=RUN) == 3
    assert page("genq_worker_tokens_per_second", worker="node7-gpu3") == 1500.5
    assert page("genq_worker_tokens_per_second", worker="node8-cpu") == 3001
    assert page("genq_worker_engine_state", worker="node7-gpu3", state="ready") == 1
    assert page("genq_worker_engine_state", worker="node7-gpu3", state="fatal") == 0
    assert page.labels("genq_worker_info") == [
        {"worker": "node7-gpu3", "model": "m"},
        {"worker": "node8-cpu", "model": "m"},
    ]
    assert page("genq_run_status", run=RUN, status="waiting") == 1


async def test_what_is_left_of_a_young_run_is_what_status_says_and_nothing_while_it_is_held(
    bench, seen, redis_url
):
    await bench.load(40)
    await bench.complete(await bench.lease(10))
    worker = Worker(
        [Queue(RUN, connection=bench.sync, serializer=JSONSerializer)],
        name=ONE,
        connection=bench.sync,
        serializer=JSONSerializer,
    )
    worker.register_birth()
    await bench.runs.set_gauges(ONE, FIGURES, 60)

    async def left():
        page = await seen()
        return [page("genq_run_remaining_seconds", run=RUN, bound=b) for b in ("best", "worst")]

    watcher = Watcher(bench.client, load_settings(redis_url=redis_url, store=""))
    # Of so young a run the rate falls with every moment, and what is left grows: it is in between.
    (before,), shown, (after,) = await watcher.look(RUN), await left(), await watcher.look(RUN)
    for least, found, most in zip(eta(before), shown, eta(after), strict=True):
        assert 0.9 * least <= found <= 1.1 * most
    for move, back in (("pause", "resume"), ("hold", None)):
        await getattr(bench.runs, move)(RUN, *(["31 % are empty"] if move == "hold" else []))
        assert await left() == [None, None]
        if back:
            await getattr(bench.runs, back)(RUN)


async def test_a_look_costs_the_same_however_large_the_run_is(bench, seen):
    async def calls():
        before = bench.sync.info("stats")["total_commands_processed"]
        await seen()
        return bench.sync.info("stats")["total_commands_processed"] - before

    await bench.load(10)
    await seen()  # it sends the script
    small = await calls()
    bench.sync.flushall()
    await bench.load(5000)
    assert await calls() == small < 60, "with those inside the script"


@pytest.mark.parametrize("move", ["pause", "hold", "cancel"])
async def test_the_exporter_words_states_as_status_does(bench, seen, move):
    await bench.load(2)
    await getattr(bench.runs, move)(RUN, *(["31 % are empty"] if move == "hold" else []))
    word = {"pause": "paused", "hold": "held", "cancel": "cancelled"}[move]
    page = await seen()
    on = [
        labels["status"]
        for labels in page.labels("genq_run_status")
        if page("genq_run_status", **labels)
    ]
    assert on == [word]


async def test_after_a_failed_look_the_page_says_only_that(bench, redis_url):
    await bench.load(2)
    exporter = Exporter(bench.client, load_settings(redis_url=redis_url))
    await exporter.look()
    bench.sync.rename(RUNS, "aside")
    bench.sync.set(RUNS, "of another kind")
    with pytest.raises(QueueError):
        await exporter.look()
    bench.sync.rename("aside", RUNS)
    page = page_of(exporter.read())
    assert (page("genq_exporter_up"), page("genq_exporter_failed_looks_total")) == (0, 1)
    assert page.labels("genq_run_items") == []
    await exporter.look()
    assert page_of(exporter.read()).labels("genq_run_items")


async def test_once_prints_the_page_or_its_samples(bench, settings, capsys):
    await bench.load(3)
    await asyncio.to_thread(run_exporter, settings, Console(), interval_seconds=1.0, once=True)
    assert Page(capsys.readouterr().out + "\n")("genq_run_size_items", run=RUN) == 3
    await asyncio.to_thread(
        run_exporter, settings, Console(json=True), interval_seconds=1.0, once=True
    )
    samples = json.loads(capsys.readouterr().out)["samples"]
    assert {"name": "genq_run_size_items", "labels": {"run": RUN}, "value": 3.0} in samples
    with pytest.raises(UsageError, match="no JSON form"):
        run_exporter(settings, Console(json=True), interval_seconds=1.0, once=False)


def test_the_exporter_serves_until_it_is_stopped_and_tells_systemd(service_env, tmp_path):
    (port,) = free_ports(1)
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "exporter", "--port", str(port), "--interval", "0.5"],
        env={**service_env, "NOTIFY_SOCKET": str(tmp_path / "notify")},
        stderr=subprocess.PIPE,
    )

    def up():
        assert process.poll() is None, process.stderr.read().decode()
        try:
            return Page(fetch(port)[1])("genq_exporter_up") == 1
        except OSError:
            return False

    try:
        eventually_sync(up, 60)
        assert fetch(port, "/healthz")[0] == 200
        assert [manager.recv(100), manager.recv(100)] == [b"READY=1", b"WATCHDOG=1"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert b"STOPPING=1" in iter(lambda: manager.recv(100), b"")
    finally:
        process.kill()
        process.communicate()
        manager.close()


# --- consumer and sink


@pytest.fixture
async def world(settings, store, service_env, tmp_path):
    (port,) = free_ports(1)
    settings = settings.model_copy(update={"metrics_port": port})
    async with world_of(settings, store, service_env, tmp_path) as world:
        yield world


async def test_a_consumer_shows_its_engine_its_window_and_its_verdicts(world):
    async def page():
        return Page((await asyncio.to_thread(fetch, world.settings.metrics_port))[1])

    async def all_taken():
        shown = await page()
        return shown("genq_consumer_completed_items_total", gpu="") == 12

    await world.load(12)
    async with running_fake(world.folder, api_key="") as engine, world.serving(url=engine.url):
        await world.generated(12)
        await eventually(all_taken, 60)
        shown = await page()
    shown.agrees_with(CONSUMER)
    lint(shown)
    tries = {
        labels["verdict"]: shown("genq_consumer_tries_total", **labels)
        for labels in shown.labels("genq_consumer_tries_total")
    }
    assert sum(tries.values()) == 12
    assert tries["ok"] + tries["truncated"] == 12
    assert shown("genq_consumer_engine_state", gpu="", state="ready") == 1
    assert shown("genq_consumer_engine_starts_total", gpu="") == 1
    assert shown("genq_engine_max_running_requests", gpu="") > 0
    assert shown("genq_consumer_completion_tokens_total", gpu="") > 0
    assert "question" not in shown.text, "no prompt"
    assert shown.labels("genq_gpu_up") == [], "there is no card"


async def test_a_sink_shows_what_it_committed(settings):
    (port,) = free_ports(1)
    settings = settings.model_copy(update={"metrics_port": port, "sink_seconds": 0.5})
    job = await load_job(settings, "shown", rows=12)
    await job.answer_all(payloads={3: b"no completion"})
    options = {"only": None, "burst": False, "single_writer": False, "say": print}
    sink = asyncio.create_task(run_sink(settings, **options))

    async def all_committed():
        assert not sink.done(), sink.result()
        try:
            status, text = await asyncio.to_thread(fetch, port)
        except OSError:
            return None
        page = Page(text)
        done = status == 200 and page("genq_sink_committed_items_total", run="shown") == 11
        return page if done and page("genq_sink_parts_total", run="shown") else None

    try:
        page = await eventually(all_committed, 60)
        assert (await asyncio.to_thread(fetch, port, "/healthz"))[0] == 200
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        code = await sink
        await job.redis.aclose()
    assert code == 143
    page.agrees_with(SINK)
    lint(page)
    assert page("genq_sink_rejected_results_total", run="shown") == 1
    parts = page("genq_sink_parts_total", run="shown")
    assert parts == page("genq_sink_commit_seconds_count", run="shown") > 0
    assert page("genq_sink_written_bytes_total", run="shown") > 100
    assert page("genq_sink_last_commit_timestamp_seconds", run="shown") > 1.7e9
    assert page("genq_sink_batch_items", run="shown") == 0
    assert page("genq_sink_away", service="storage") == 0
    assert "question" not in page.text


async def test_a_sink_shows_what_it_waits_for(settings):
    job = await load_job(settings, "waits", rows=1)
    async with local_lab(settings, job) as lab:
        tools = lab.tools()
        metrics = SinkMetrics(SinkService(tools, only=None, burst=False), tools)
        calls = iter([StoreError("away"), StoreError("away"), None])
        seen = []

        async def call():
            seen.append(page_of(metrics.read())("genq_sink_away", service="storage"))
            if error := next(calls):
                raise error

        outage = Outage("storage", asyncio.Event(), retried=StoreError, figures=tools.figures)
        await outage.outlast(call)
        page = page_of(metrics.read())
    assert seen == [0, 1, 1]
    assert page("genq_sink_away", service="storage") == 0
    assert page("genq_sink_failed_calls_total", service="storage") == 2


async def test_an_outage_is_said_once_for_all_who_wait_and_says_what_to_do():
    figures, stop, redis = Figures(), asyncio.Event(), Away()
    kinds = {"retried": QueueError, "final": (EpochError,), "figures": figures}
    waiting = [Outage("redis", stop, **kinds) for _ in range(10)]
    with capture_logs() as logs:
        calls = [asyncio.create_task(one.outlast(redis.ask)) for one in waiting]
        await eventually(lambda: redis.asked > 20, 60)
        assert figures.away["redis"] == len(waiting)
        redis.away = False
        await asyncio.gather(*calls)
        assert [log["event"] for log in logs] == ["sink.away", "sink.back"]
        assert "Start it" in logs[0]["fix"]
        redis.away = True  # the next one is said, too, also where its callers are called off
        again = asyncio.create_task(waiting[0].outlast(redis.ask))
        await eventually(lambda: figures.away["redis"], 60)
        again.cancel()
        await asyncio.wait([again])
    assert [log["event"] for log in logs] == ["sink.away", "sink.back", "sink.away"]
    assert figures.away["redis"] == 0


class Away:
    """Calls of a Redis that is away until it is told to answer."""

    away, asked = True, 0

    async def ask(self):
        self.asked += 1
        if self.away:
            raise explain(OSError("connection refused"), "any", "reading")


async def test_an_answer_that_is_final_ends_what_was_waited_for():
    figures = Figures()
    calls = iter([QueueError("away"), EpochError("gone")])

    async def call():
        raise next(calls)

    outage = Outage(
        "redis", asyncio.Event(), retried=QueueError, final=(EpochError,), figures=figures
    )
    with pytest.raises(EpochError):
        await outage.outlast(call)
    assert (figures.away["redis"], figures.failed_calls["redis"]) == (0, 1)
