"""The JSON of status and trace, and the screen, as docs/status.md has them."""

import json
import re
from dataclasses import replace
from pathlib import Path

from common.codec import dumps
from common.queue.item_state import FailedTry, ItemState, WaitingResult
from producer.fleet import STATUSES
from producer.status.as_json import run_json
from producer.status.view import screen
from producer.trace.life import Answer, Letter, Life
from producer.trace.names import Match, Matches
from producer.trace.words import trace_json
from tests.support.statuses import (
    FINE,
    HELD,
    INFO,
    NO_ROOM,
    STATUS,
)


def test_the_json_is_plain_and_versioned():
    data = json.loads(dumps(run_json(STATUS)))
    assert (data["version"], data["run"], data["state"]) == (1, INFO.run, "generating")
    assert data["counts"] == {
        "total": 902_087,
        "loaded": 902_087,
        "queued": 400_000,
        "waiting": 12,
        "leased": 336,
        "generated": 120,
        "committed": 501_616,
        "dead": 3,
    }
    assert data["rate"]["recent"] == {"completions": 8.8, "tokens": 8800.0}
    assert data["workers"][2]["gauges"]["engine_starts"] == "3"
    assert data["problems"] == []


def documented(heading):
    text = (Path(__file__).parents[2] / "docs/status.md").read_text(encoding="utf-8")
    section = text.partition(heading)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| (.+) \|$", section, re.MULTILINE)
    return {
        name: set(re.findall(r"`(\w+)`", meaning))
        for names, meaning in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def test_the_documented_json_is_what_is_printed():
    fields = documented("## The JSON, version 1")
    data = json.loads(
        dumps(run_json(replace(FINE, examples=HELD.examples, children=HELD.children)))
    )
    data["redis"] = run_json(NO_ROOM)["redis"]
    assert set(fields) == set(data)
    for name in ("counts", "rate", "cost", "tokens", "seconds_since", "canary", "redis"):
        assert set(data[name]) <= fields[name], name
    for name in ("workers", "examples", "children"):
        assert set(data[name][0]) <= fields[name], name
    assert {"finishing", "done", *STATUSES} <= fields["state"]


def test_the_documented_json_of_an_item_is_what_is_printed():
    fields = documented("## One item: `trace`")
    failed = FailedTry(1.0, "gpu0", "why")
    waits = WaitingResult("1-1", "ok", 2, b"")
    state = ItemState(INFO.run, 7, "open", "generated", 1.0, failures=[failed], result=waits)
    answer = Answer(None, "", None, *("ok", "stop"), *range(6), *("w", "s"), 1.0, *("m", "e"))
    letter = Letter("empty", "why", "w", "at")
    life = Life(INFO.run, 7, 8, 0, "id", "", ("up", 3), state, answer, letter)
    told = json.loads(dumps(trace_json(INFO.run, "7", Matches([Match(7, 8, 0)], 1), life, [])))
    assert set(told["life"]) == set(fields)
    inner = told["life"]["redis"]
    assert {*inner, *inner["failures"][0], *inner["result"]} <= fields["redis"]
    assert set(told["life"]["completion"]) <= fields["completion"]
    assert set(told["life"]["letter"]) == fields["letter"]
    text = (Path(__file__).parents[2] / "docs/status.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text.partition("## One item")[2] for name in told)


def test_the_documented_screen_is_the_one_of_the_first_test():
    text = (Path(__file__).parents[2] / "docs/status.md").read_text(encoding="utf-8")
    shown = re.search(r"^    drafter-1  generating.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)[0]
    lines = [line[4:].replace("drafter-1", INFO.run) for line in shown.split("\n")]
    assert lines == screen(FINE).split("\n")
