"""A Redis that may lose what it took: said by the services that write, once; work goes on."""

from __future__ import annotations

import json

import pytest
import redis
from structlog.testing import capture_logs

from common.errors import Exit
from common.ids import RunName
from consumer.sink import start as sink
from tests.support.producers import Producer

WEAKER = {
    "appendfsync": ("everysec", "CONFIG SET appendfsync always"),
    "appendonly": ("no", "CONFIG SET appendonly yes"),
}


@pytest.fixture(params=WEAKER)
def weakness(request, redis_url):
    value, said = WEAKER[request.param]
    with redis.Redis.from_url(redis_url) as client:
        before = client.config_get(request.param)[request.param]
        client.config_set(request.param, value)
        yield said
        client.config_set(request.param, before)


@pytest.fixture
def load(service_env, monkeypatch, capsys, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "hello"}\n')
    say = Producer(service_env, monkeypatch, capsys)
    return lambda: say("load", rows, "--model", "m", "--json")


def warnings(logs):
    return [log["why"] for log in logs if log["event"] == "Redis may lose what it took"]


async def test_the_consumer_says_it(world, engine, weakness):
    await world.load(2)
    with capture_logs() as logs:
        assert await world.burst(url=engine.url, runs=(RunName("one"),)) == Exit.DONE
    (said,) = warnings(logs)
    assert weakness in said


async def test_the_sink_says_it(settings, weakness):
    with capture_logs() as logs:
        done = await sink.run_sink(settings, only=None, burst=True, single_writer=False, say=print)
    assert done == Exit.DONE
    (said,) = warnings(logs)
    assert weakness in said


def test_load_says_it_beside_its_json(load, weakness):
    said = load()
    assert json.loads(said.out)["outcome"] == "loaded"
    assert said.err.count(weakness) == 1


def test_nothing_is_said_of_a_server_that_keeps_what_it_took(load):
    assert "CONFIG SET" not in load().err
