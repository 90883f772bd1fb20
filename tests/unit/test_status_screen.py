"""The status screen: its lines, how wide it is, and what each of them says."""

import json
from dataclasses import replace

import pytest

from common.codec import dumps
from producer.status.as_json import run_json
from producer.status.store import one_line
from producer.status.view import LINES, bar, fold, percent, row, screen
from tests.support.statuses import (
    FINE,
    HELD,
    STATUS,
    with_,
)

TRIES = "40 empty, 7 timeout, 3 aborted, 1 more"
SLOWEST = "<- slowest: 51 % of median  restarts 2"


def test_the_screen():
    assert screen(FINE).split("\n") == [
        "ultrachat-200k  generating: engine of gpu 3 starting",
        "[###########.........] 55.6 %  501,619 of 902,087; kept but flagged: 1,736 truncated",
        "queued 400,000, waiting retry 12, leased 336, generated 120, committed 501,616, dead 3",
        "now 8.8/s (8,800 tok/s), average 5.8/s (5,800 tok/s); done in 12 h 13 min to 13 h 14 min",
        "last commit part 1,003, 42 s ago; cost 1,234 so far, 1,296 in all (at 2.50 a GPU-hour)",
        f"dead: 3 too_long; failed tries: {TRIES}; wasted 0.1 % of tokens",
        f"  n1 gpu 2   ready     48/48 in flight  1,800 tok/s{' ' * 11}{SLOWEST}",
        "  n1 gpu 3   starting      0 in flight      0 tok/s",
        "  n1 gpu 10  ready     48/48 in flight  3,500 tok/s  KV 87 %",
        "Next: gen-producer failed ultrachat-200k",
    ]
    assert "; 494 GPU-hours so far, 518 in all\n" in screen(replace(FINE, price=None))


def test_a_narrow_screen_keeps_numbers_with_their_words_and_marks_with_their_cards():
    lines = screen(FINE, width=60).split("\n")
    assert max(map(len, lines)) <= 60
    assert lines[1:3] == [
        "[###########.........] 55.6 %  501,619 of 902,087;",
        "    kept but flagged: 1,736 truncated",
    ]
    assert "  n1 gpu 10  ready     3,500 tok/s" in lines
    assert "  n1 gpu 2   ready     1,800 tok/s  <- slowest: 51 % of" in lines
    assert fold("a, b; " + "c" * 70, 60) == ["a, b;", "    " + "c" * 70]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("state", ["open", "loading", "paused", "held", "closed", "cancelled"])
def test_every_line_fits_and_is_plain_ascii(width, state):
    long = with_(info={"run": "r" * 63, "state": state}, hold_reason="too many empty answers " * 4)
    lines = screen(long, width=width).split("\n")
    assert max(map(len, lines)) <= max(width, 67)  # a name of 63 characters is not broken
    assert screen(long, width=width).isascii()
    assert len(row(long, width=width)) <= width
    assert not row(long, width=None).endswith("...")
    if width == 100:
        assert len(lines) - len(long.workers) <= LINES + 1


def test_some_of_many_dead_letters_stand_for_all():
    many = with_(dead=40_000, queued=360_003)
    many = replace(many, dead_by_class={"too_long": 3_000, "empty": 2_000})
    assert "dead: about 24,000 too_long, 16,000 empty;" in screen(many)
    data = run_json(many)
    assert (data["dead_looked_at"], data["dead_by_class"]["empty"]) == (5_000, 2_000)


def test_a_bar_is_full_only_at_the_end():
    assert bar(999, 1000) == "#" * 19 + "."
    assert (bar(1000, 1000), percent(1000, 1000)) == ("#" * 20, "100.0 %")
    assert percent(999_999, 1_000_000) == "99.9 %"


def test_a_held_run_shows_what_went_wrong_and_how_to_go_on():
    lines = screen(HELD).split("\n")
    assert lines[0] == (
        "ultrachat-200k  held by canary: 174 of the first 200 rows went wrong (87 %): 174 empty"
    )
    assert '  row 4 id-3: "Who wrote Faust?" -> empty: no text in 1 tokens' in lines
    assert '  row 6: "What is 2 + 2?" -> empty: no text in 1 tokens' in lines
    assert "children: ultrachat-200k-truncated (12 of 1,736 truncated redone)" in lines
    assert "gen-producer resume ultrachat-200k --accept" in lines[-2] + lines[-1]
    assert len(lines) - len(HELD.workers) <= 10
    data = json.loads(dumps(run_json(HELD)))
    assert data["canary"]["classes"] == {"empty": 174, "ok": 26}
    assert data["examples"][0]["row_id"] == "id-3"
    assert data["children"][0]["run"] == "ultrachat-200k-truncated"
    assert data["flagged"] == {"truncated": 1_736}


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("open", "12 of 1,736 truncated redone, 5 ok"),
        ("closed", "12 of 1,736 truncated redone, 5 ok"),
        ("cancelled", "12 of 1,736 truncated redone, 5 ok, cancelled"),
        ("held", "12 of 1,736 truncated redone, 5 ok, held"),
        ("paused", "12 of 1,736 truncated redone, 5 ok, paused"),
        ("not_in_redis", "1,736 truncated, not in Redis"),
    ],
)
def test_a_child_run_that_does_not_go_on_is_told_with_its_state(state, told):
    child = replace(HELD.children[0], state=state, ok=5)
    for ok, words in (
        (5, told),
        (12, told.replace(", 5 ok", "")),
        (None, told.replace(", 5 ok", "")),
    ):
        lines = screen(replace(STATUS, children=[replace(child, ok=ok)])).split("\n")
        assert f"children: {child.run} ({words})" in lines


def test_texts_of_rows_and_answers_cannot_steer_a_terminal():
    assert one_line("a\x1b[31mb\r\n\tc \u202e d\u2028e") == "a [31mb c d e"
    assert one_line("ä" * 100) == "?" * 57 + "..."
