"""A load whose Redis, or whose run in it, goes away while ids are queued."""

from __future__ import annotations

import pytest
import redis

from producer.load import enqueue
from tests.support import forge, servers
from tests.support.loads import LOAD, RUN, assert_whole, write

ROWS = 9_000  # more chunks than are queued at a time


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, ROWS)
    return path


@pytest.fixture
def after_a_chunk(monkeypatch):
    """Let something happen once, when the first ids are queued."""

    def let(happen):
        left = [happen]

        def hit(name):
            if name == "load.after_chunk" and left:
                left.pop()()

        monkeypatch.setattr(enqueue, "hit", hit)

    return let


def assert_three_lines(said):
    assert "Traceback" not in said.err
    what, why, fix = said.err.strip().splitlines()[-3:]
    assert what.startswith("Error: ")
    assert why.startswith("  ")
    assert fix.startswith("  ")


def test_redis_that_goes_away_while_ids_are_queued_is_exit_4(
    producer, service_env, rows, after_a_chunk
):
    with servers.redis_server() as server:
        service_env["GENQ_REDIS_URL"] = server.url
        after_a_chunk(server.stop)
        assert_three_lines(producer(*LOAD, rows, code=4))


def test_a_run_that_is_flushed_while_ids_are_queued_is_exit_4(
    producer, rows, after_a_chunk, redis_url
):
    with redis.Redis.from_url(redis_url) as client:
        after_a_chunk(client.flushall)
        assert_three_lines(producer(*LOAD, rows, code=4))
    producer(*LOAD, rows)
    assert_whole(redis_url, ROWS)


def test_a_run_that_is_cancelled_while_ids_are_queued_is_exit_7(
    producer, service_env, rows, after_a_chunk, redis_url
):
    words = ["gen-producer", "cancel", RUN, "--yes"]
    after_a_chunk(lambda: forge.run(words, env=service_env, check=True, capture_output=True))
    assert_three_lines(producer(*LOAD, rows, code=7))
    producer(*LOAD, rows)
    assert_whole(redis_url, ROWS)
