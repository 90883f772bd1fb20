"""docs/ and README.md: what is made from the code is current, lists are complete, links lead on."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import replace

import pytest

from common.errors import Exit
from common.records import DEFAULT_POLICIES, ENGINE_FAULTS, Verdict
from common.settings import OTHER_VARIABLES, Settings
from producer.fleet import STATUSES
from producer.status import state as status_state
from producer.status.rows import worker_lines
from producer.status.view import screen
from tests.support import (
    docs,
    docs_blocks,
    docs_events,
    docs_links,
    docs_pages,
    docs_schema,
    docs_words,
)
from tests.support.statuses import FINE

OPERATIONS = "docs/operations.md"
ALERTS = docs.ROOT / "deploy" / "prometheus" / "alerts.yml"
STORED_STATE = "not_in_redis"  # what object storage alone tells of a run


@pytest.fixture(scope="module")
def made():
    return docs.made_here()


@pytest.mark.parametrize(
    "page", [*docs_blocks.PAGES, docs._SCHEMA, "docs/settings.md", "docs/cli.md"]
)
def test_what_is_made_from_the_code_is_current(made, page):
    assert docs.read(page) == made[page], "run: make docs"


def test_a_stored_field_without_words_is_found():
    with pytest.raises(AssertionError, match=r"no words for .'new'"):
        docs_schema.complete(["k", "new"], {"k": "The item."})
    with pytest.raises(AssertionError, match=r"not there: .'old'"):
        docs_schema.complete(["k"], {"k": "The item.", "old": "Gone."})


def test_each_setting_names_those_that_read_it():
    assert set(docs_words.READERS) == set(Settings.model_fields)
    assert set(docs_words.VARIABLES) == set(OTHER_VARIABLES)
    described = {name for name, field in Settings.model_fields.items() if field.description}
    assert set(docs_words.MEANINGS) >= set(Settings.model_fields) - described
    read = {
        "producer": docs_pages.settings_read_in("producer"),
        "consumer": docs_pages.settings_read_in("consumer", without="consumer/sink"),
        "sink": docs_pages.settings_read_in("consumer/sink"),
    }
    for program, names in read.items():
        silent = {name for name in names if program not in docs_words.READERS[name]}
        assert not silent, f"the {program} reads {sorted(silent)}: say so in docs_words.READERS"


def section(title):
    return docs.read(OPERATIONS).partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(title):
    return re.findall(r"(?m)^\| `?([\w]+)`? \|", section(title).partition("\n| cause |")[0])


def test_operations_tells_of_each_alert():
    told = re.findall(r"(?m)^### (\w+)$", section("Alerts"))
    alerts = re.findall(r"alert: (\w+)", ALERTS.read_text(encoding="utf-8"))
    assert sorted(told) == sorted(alerts)


def state_words():
    """The words in which `status` says how a run is, read from the rules that choose them."""
    tree = ast.parse(inspect.getsource(status_state.state_of))
    rules = [node for node in ast.walk(tree) if isinstance(node, ast.Tuple) and len(node.elts) == 3]
    words = {
        node.elts[1].value
        for node in rules
        if isinstance(node.elts[1], ast.Constant) and node.elts[1].value
    }
    return words | set(STATUSES) | {STORED_STATE}


def test_operations_tells_of_each_state_word():
    told = [word for word in first_cells("State words") if word != "word"]
    assert sorted(told) == sorted(state_words())
    assert {"done", "generating", "held"} < set(told)


def test_operations_tells_of_each_cause_of_a_stall():
    table = section("State words").partition("\n| cause |")[2]
    told = re.findall(r"(?m)^\| ([\w ,:'-]+) \|", table)
    causes = [one for name, one in vars(status_state).items() if _is_cause(name, one)]
    assert len(causes) >= 6
    for cause in causes:
        assert any(one.startswith(cause.partition(":")[0]) for one in told), cause


def _is_cause(name, value):
    return re.match(r"_[A-Z]", name) and isinstance(value, str)


def test_operations_tells_of_each_exit_code():
    rows = re.findall(r"(?m)^\| (\d+) \| `(\w+)` \|", section("Exit codes"))
    assert sorted(rows) == sorted((str(int(code)), code.name) for code in Exit)


def test_operations_tells_of_each_class_of_failure_and_its_policy():
    rows = re.findall(r"(?m)^\| `(\w+)` \| (\S+) \| ([\w ]+) \|", section("Classes of failures"))
    assert [name for name, _, _ in rows] == [str(one) for one in Verdict]
    for name, fault, policy in rows:
        if name in ENGINE_FAULTS:
            assert (fault, policy) == ("engine", "never charged")
        elif name != Verdict.OK:
            assert (fault, policy) == ("row", str(DEFAULT_POLICIES[Verdict(name)]))


@pytest.mark.parametrize(
    "page", docs_links.markdown_files(), ids=lambda page: page.relative_to(docs.ROOT).as_posix()
)
def test_links_and_commands_of_each_page_lead_somewhere(page):
    assert not docs_links.broken_links(page)
    wrong = {
        one: bad for one in docs_links.commands_in(page) if (bad := docs_links.unknown_words(one))
    }
    assert not wrong, "commands or flags that do not exist"


def test_log_events_that_pages_name_are_logged():
    events = docs_events.log_events()
    pages = {page.name: page.read_text(encoding="utf-8") for page in docs_links.markdown_files()}
    found = {page: docs_events.unknown_events(text, events) for page, text in pages.items()}
    assert not {page: names for page, names in found.items() if names}, "nothing logs them"
    assert docs_events.unknown_events("`engine.ready`, `engine ready`, `run\ngone`", events) == [
        "engine.ready",
        "run gone",
    ]


def test_each_page_of_docs_is_found_from_the_readme():
    pages = {page for page in docs_links.markdown_files() if page.parent == docs.ROOT / "docs"}
    assert pages <= docs_links.reachable(docs.ROOT / "README.md")


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = docs.ROOT / "docs" / "operations.md"
    assert docs_links._leads_somewhere(page, "operations.md#alerts")
    assert not docs_links._leads_somewhere(page, "operations.md#nowhere")
    assert not docs_links._leads_somewhere(page, "nowhere.md")
    assert docs_links.unknown_words("gen-producer load x --no-such-flag 3") == ["--no-such-flag"]
    assert docs_links.unknown_words("gen-producer lod x") == ["lod"]
    assert not docs_links.unknown_words("gen-consumer --gpu 3 -- --whatever")


def test_loose_comparison_forgives_numbers_and_answers_and_nothing_else():
    one = "100 items = 41 committed\n7 parts; 41 ok, 59 truncated\n> Why?\n  So.\n"
    other = "99 items = 3 committed\n8 parts; 99 ok\n> Why?\n  Because.\n"
    assert docs_blocks.loose(one) == docs_blocks.loose(other)
    assert docs_blocks.loose("3 lost\n") != docs_blocks.loose("3 committed\n")


def test_output_is_shown_without_the_place_and_time_of_its_making(tmp_path):
    said = f"{tmp_path}/.genq/demo at 2026-03-04T05:06:07.89 on 127.0.0.1:43215\n"
    assert docs_blocks.tidy(said, tmp_path) == (
        ".genq/demo at 2026-11-29T12:00:00 on 127.0.0.1:6379\n"
    )


def test_the_status_page_shows_a_real_screen_and_tells_of_each_column_and_mark():
    page = (docs.ROOT / "docs" / "status.md").read_text()
    shown = screen(FINE).replace(FINE.info.run, "drafter-1")
    assert textwrap.indent(shown, "    ") in page
    said = page.partition("A worker's row")[2].partition("Looking changes nothing")[0]
    gauges = {
        "host": "n1", "gpu": "1", "engine": "READY", "in_flight": "1", "window": "2",
        "tokens_per_second": "3", "token_usage": "0.5", "gpu_utilization": "0.5", "failed": "3",
        "gpu_power_watts": "1", "gpu_temperature_celsius": "1", "accept_length": "2",
        "engine_starts": "2", "gpu_throttled": "hw_thermal", "gpu_failing": "x",
        "engine_lowered": "y", "completed": "1",
    }  # fmt: skip
    (line,) = worker_lines([replace(FINE.workers[0], gauges=gauges)], width=400)
    words = set(re.findall(r"[A-Za-z]{2,}|[CW]\b", line)) - {"gpu", "ready", "hw", "thermal"}
    assert {word for word in words if word not in said} == set(), line
