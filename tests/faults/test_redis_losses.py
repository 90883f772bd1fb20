"""Redis lost all, or is full: work stops safely, people are told, and it goes on afterwards."""

from __future__ import annotations

import threading

import pytest
import structlog

from producer.load import room
from tests.faults.rig import RUN, pipeline, quick_outages
from tests.support.producers import Producer
from tests.support.servers import eventually, eventually_sync

ROWS = 40


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quick_outages(monkeypatch)
    monkeypatch.setattr(room, "RETRY_SECONDS", 0.1)


@pytest.mark.row("C4")
async def test_flushall_in_mid_run_and_a_load_from_storage_alone(
    redis_url, store_settings, tmp_path
):
    """Results in consumers' hands are offered again, the sink's batch is stored all the same."""
    async with pipeline(
        redis_url, store_settings, tmp_path, sink_rows=1000, sink_seconds=3600
    ) as rig:
        await rig.load(ROWS)
        sink = rig.start_sink()
        with structlog.testing.capture_logs() as logs:
            async with rig.world.serving(url=rig.engine.url):
                await eventually(lambda: in_hand(rig), 30)
                await rig.audit.flushall()
                await eventually(lambda: any(log["event"] == "sink.epoch_gone" for log in logs), 20)
                await eventually(rig.stored, 20)
                await rig.load_again()
                assert (await rig.counts()).committed > 0
                await rig.finished(sink)
    said = next(log for log in logs if log["event"] == "sink.epoch_gone")
    assert said["fix"] == f"gen-producer load --run {RUN}"


async def in_hand(rig):
    """Whether the sink has read some results that are not stored yet."""
    waiting = await rig.audit.xpending(f"genq:stream:{RUN}", "sink")
    return waiting["pending"] >= 8


@pytest.mark.row("C4")
def test_status_names_what_is_stored_and_the_command_that_goes_on(producer, redis_server, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt":"a"}\n{"prompt":"b"}\n')
    producer("load", rows, "--run", "gone", "--model", "m")
    import redis  # noqa: PLC0415 - used here only

    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    said = producer("status", "gone")
    assert "0 of 2" in said.out
    assert "gen-producer load --run gone" in said.out
    producer("load", "--run", "gone")
    assert "Put run gone back" not in producer("load", "--run", "gone").out


@pytest.mark.row("C5")
def test_a_load_waits_for_room_says_how_much_and_goes_on(
    frail, service_env, tmp_path, monkeypatch, capsys
):
    producer = Producer({**service_env, "GENQ_REDIS_URL": frail.url}, monkeypatch, capsys)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt":"question {i}"}}\n' for i in range(12_000)))
    used = frail.tell("INFO", "memory")["used_memory"]
    frail.tell("CONFIG", "SET", "maxmemory", used + 600_000)

    def give_room() -> None:
        def full() -> bool:
            return int(frail.tell("INFO", "memory")["used_memory"]) > used + 600_000

        eventually_sync(full, 60)
        frail.tell("CONFIG", "SET", "maxmemory", "200mb")

    helper = threading.Thread(target=give_room)
    helper.start()
    said = producer("load", rows, "--run", "big", "--model", "m")
    helper.join()
    assert said.err.count("Redis is full") == 1
    assert "of 12,000 ids are queued" in said.err
    assert "redis-cli CONFIG SET maxmemory" in said.err
    assert said.err.count("Redis has room again") == 1
    assert "12,000 ids queued" in said.out
    assert "0 new" in producer("load", rows, "--run", "big", "--model", "m").out


@pytest.mark.row("C5")
async def test_consumers_and_sink_complete_in_a_full_redis(frail, store_settings, tmp_path):
    async with pipeline(frail.url, store_settings, tmp_path) as rig:
        await rig.load(ROWS)
        frail.tell("CONFIG", "SET", "maxmemory", "1mb")
        sink = rig.start_sink()
        async with rig.world.serving(url=rig.engine.url):
            await rig.finished(sink)
        with pytest.raises(Exception, match="maxmemory"):
            await rig.audit.set("anything", "more")
