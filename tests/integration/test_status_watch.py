"""`status --watch` on real terminals, and what a look costs Redis."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import termios

import pytest
import redis
from rich.console import Console as Terminal
from rich.live import Live

from common.ids import WorkerName
from common.keys import gauges_key
from common.records import Verdict
from producer.status import data as status_data
from producer.status.data import Watcher
from producer.status.live import Frames, coloured
from tests.support import forge, loads
from tests.support.producers import Producer
from tests.support.queues import RUN, let_time_pass

COLUMNS = 60


@pytest.fixture
def loaded(service_env, monkeypatch, capsys, tmp_path):
    producer = Producer(service_env, monkeypatch, capsys)
    path = tmp_path / "rows.jsonl"
    loads.write(path, 40)
    producer(*loads.LOAD, path)
    return producer


class OnTerminal:
    """A command on a terminal of its own, 60 columns wide and 24 lines high."""

    def __init__(self, env, *words):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        env = {key: value for key, value in env.items() if key not in ("COLUMNS", "LINES")}
        self.process = forge.Popen(["gen-producer", *words], env=env, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.said = ""

    def read_until(self, holds):
        """Read until it holds of all that was said, or until the end."""
        while not holds(self.said):
            try:
                self.said += os.read(self._ours, 65536).decode()
            except OSError:  # the other end is closed
                break
        return self.said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def end(self):
        self.read_until(lambda _said: False)
        return self.process.wait(60)


@pytest.mark.timeout(120)
def test_on_a_terminal_one_screen_is_renewed_until_ctrl_c(loaded, service_env):
    env = {**service_env, "TERM": "xterm"}
    with OnTerminal(env, "status", "rows", "--watch", "0.2") as screen:
        screen.read_until(lambda said: said.count("Next:") >= 3)
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 130
    assert "\x1b[?25h" in screen.said.rpartition("Next:")[2], "the cursor is shown again"
    assert re.search(r"\x1b\[\d*A", screen.said), "frames take each other's place"
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.said).replace("\r", "\n")
    assert max(map(len, plain.split("\n"))) <= COLUMNS
    assert "rows  stalled: no consumer serves this model" in plain
    assert "every 0.2 s; Ctrl-C ends this only" in plain
    assert loads.counts(service_env["GENQ_REDIS_URL"]).queued == 40


@pytest.mark.timeout(120)
def test_a_dumb_terminal_in_the_c_locale_gets_plain_blocks(loaded, service_env):
    loaded("cancel", "rows", "--yes")
    plain = {"TERM": "dumb", "LC_ALL": "C", "LANG": "", "NO_COLOR": "1"}
    with OnTerminal({**service_env, **plain}, "status", "rows", "--watch") as screen:
        assert screen.end() == 0
    assert "\x1b" not in screen.said
    assert screen.said.isascii()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\r\nrows  cancelled\r\n", screen.said)


def test_watched_as_json_each_look_is_a_line(loaded):
    loaded("cancel", "rows", "--yes")
    (line,) = loaded("status", "rows", "--watch", "--json").out.splitlines()
    assert json.loads(line)["state"] == "cancelled"


def test_while_redis_is_away_the_last_screen_stays_and_says_so():
    file = io.StringIO()
    terminal = Terminal(file=file, force_terminal=True, width=COLUMNS, height=30)
    with Live(console=terminal, auto_refresh=False) as live:
        frames = Frames(live, 2.0)
        frames.trouble("Redis cannot be reached. Trying again.")
        first = file.getvalue()
        frames.show("rows  generating\nNext: gen-producer status rows", {})
        frames.trouble("Redis cannot be reached. Trying again.")
    said = file.getvalue().removeprefix(first)
    assert "Redis cannot be reached. Trying again." in first
    assert said.count("rows  ") == 3  # the one beside the trouble, and the last that stays
    assert "The above is of" in said


def test_colours_only_repeat_what_the_words_say():
    text = "rows  stalled 3 min: sink behind\n  n1 gpu 2  ready  <- slow: 50 % of median\nNext: x"
    shown = coloured(text)
    assert shown.plain == text
    styles = {shown.plain[span.start : span.end]: str(span.style) for span in shown.spans}
    assert styles["stalled 3 min"] == "bold red"
    assert styles["<- slow: 50 % of median"] == "yellow"


def calls_of(client):
    """How often each command was called since the last look, those inside scripts included."""
    stats = client.info("commandstats")
    client.config_resetstat()
    return {name.removeprefix("cmdstat_"): one["calls"] for name, one in stats.items()}


async def spoil(bench, count):
    for _ in range(count // 500):
        await bench.fail(await bench.lease(500), Verdict.TOO_LONG, final=True)


async def test_a_frame_costs_redis_the_same_however_large_the_run_is(bench, settings, monkeypatch):
    monkeypatch.setattr(status_data, "DEAD_LOOKED", 500)

    async def look():
        watcher = Watcher(bench.client, settings)
        await watcher.look(RUN)
        first = await watcher.look(RUN)
        calls_of(bench.sync)
        (again,) = await watcher.look(RUN)  # as `--watch` does: nothing has changed
        return first, again, calls_of(bench.sync)

    await bench.load(600, canary_rows=0)
    await spoil(bench, 500)
    _, _, small = await look()
    bench.sync.flushall()
    await bench.load(6000, canary_rows=0)
    await spoil(bench, 3000)
    (first,), again, large = await look()
    assert large == small
    assert sum(large.values()) < 60
    assert not large.keys() & {"hscan", "xrange", "zscan", "keys", "lpos"}
    assert (again.counts.dead, again.dead_looked_at) == (3000, 500)
    assert first.dead_by_class == {"too_long": 500}
    let_time_pass(bench.sync, RUN, 1)
    await bench.fail(await bench.lease(1), Verdict.EMPTY, final=True)
    watcher = Watcher(bench.client, settings)
    calls_of(bench.sync)
    await watcher.look(RUN)
    assert calls_of(bench.sync)["hscan"] <= 2, "a change is counted anew, within bounds"


def test_a_run_that_its_consumer_has_yet_to_find_is_not_called_stalled(
    loaded, service_env, monkeypatch
):
    record = {"state": "idle", "queues": "another", "genq": "1"}
    ready = {"engine": "ready", "model": "m", "in_flight": "0"}
    look, looks = Watcher.look, []

    async def found_later(watcher, run):
        found = await look(watcher, run)
        looks.append(found[0])
        client.hset("rq:worker:w", "queues", "another,rows")
        return found

    monkeypatch.setattr(Watcher, "look", found_later)
    with redis.Redis.from_url(service_env["GENQ_REDIS_URL"]) as client:
        client.sadd("rq:workers", "rq:worker:w")
        client.hset("rq:worker:w", mapping=record)
        client.hset(gauges_key(WorkerName("w")), mapping=ready)
        assert "rows  waiting: nothing was handed out" in loaded("status", "rows").out
    assert [len(one.workers) for one in looks] == [0, 1]
    assert (looks[0].others, looks[0].to_come) == (1, 1)
