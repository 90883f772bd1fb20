"""Rules, alerts and dashboards: accepted by promtool, and about metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from common.telemetry.catalogue import SERVICES
from producer.exporter import DEFAULT_PORT
from tests.support import operator_pages
from tests.support.dashboards import DASHBOARDS, FOLDER, page
from tests.support.tools import DEPLOY, ROOT, accepted, run_tool

RULES = DEPLOY / "prometheus"
CASES = ROOT / "tests" / "fixtures" / "prometheus" / "alerts_test.yml"
KNOWN = {metric.name: metric for metrics in SERVICES.values() for metric in metrics}
BY_PROMETHEUS = {"instance", "job", "le"}
NAME = re.compile(r"\b(?:[a-z]+:)?genq_[a-z_]+(?::[a-z0-9_]+)?")
SELECTOR = re.compile(r"\b([a-z_:0-9]+)\{([^}]*)\}")


def rules():
    for name in ("recording.yml", "alerts.yml"):
        for group in yaml.safe_load((RULES / name).read_text())["groups"]:
            yield from group["rules"]


RECORDED = {rule["record"] for rule in rules() if "record" in rule}
ALERTS = [rule for rule in rules() if "alert" in rule]
QUERIES = {
    f"{name}: {panel.title}: {letter}": query
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard.panels
    for letter, query in zip("ABCDEFG", panel.queries, strict=False)
}
EXPRESSIONS = QUERIES | {rule.get("record", rule.get("alert")): rule["expr"] for rule in rules()}


def base(name):
    """A histogram shows three series under its name."""
    return name if name in KNOWN else re.sub(r"_(bucket|sum|count)$", "", name)


@pytest.mark.parametrize("query", EXPRESSIONS.values(), ids=list(EXPRESSIONS))
def test_every_query_asks_for_metrics_and_labels_that_exist(query):
    names = set(NAME.findall(query))
    assert names or "up{" in query
    for name in names:
        assert name in RECORDED or base(name) in KNOWN, name
    for name, selected in SELECTOR.findall(query):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selected))
        if base(name) in KNOWN:
            assert labels <= {*KNOWN[base(name)].labels, *BY_PROMETHEUS}, (name, labels)


def test_every_metric_is_looked_at_by_a_rule_or_a_panel():
    asked = {base(name) for query in EXPRESSIONS.values() for name in NAME.findall(query)}
    versions = {"genq_sink_info", "genq_consumer_info"}
    plain = {
        "genq_exporter_looks_total", "genq_exporter_failed_looks_total", "genq_run_priority",
        "genq_exporter_last_look_timestamp_seconds", "genq_run_loaded_items",
        "genq_queue_suspended", "genq_worker_engine_starts", "genq_consumer_starved",
        "genq_run_prompt_tokens_total", "genq_consumer_completed_items_total",
    }  # fmt: skip
    assert set(KNOWN) - asked <= versions | plain


@pytest.mark.parametrize("name", ["prometheus.yml", "local.yml"])
def test_promtool_accepts_configuration_and_rules(name):
    said = accepted("promtool", "check", "config", RULES / name)
    assert "FAILED" not in said
    assert f"{len(ALERTS)} rules found" in said


def test_the_walk_of_deploy_md_starts_just_what_local_yml_scrapes():
    page = (DEPLOY.parent / "docs" / "deploy.md").read_text()
    walk = page.partition("<!-- walk: monitoring -->")[2].partition("\n\n")[0]
    started = {
        f"genq-{service}": re.findall(rf"gen-{service} .*--metrics-port (\d+)", walk)
        for service in ("sink", "consumer")
    } | {"genq-exporter": [str(DEFAULT_PORT)] * walk.count("gen-producer exporter &")}
    listed = re.search(r"echo '(.*)' > (deploy/prometheus/\S+)", walk)
    config = yaml.safe_load((RULES / "local.yml").read_text())["scrape_configs"]
    for job in config:
        targets = job.get("static_configs") or json.loads(listed[1])
        ports = [one.rpartition(":")[2] for group in targets for one in group["targets"]]
        assert (started.pop(job["job_name"]), len(ports)) == (ports, 1)
    assert not started
    assert config[-1]["file_sd_configs"][0]["files"] == [Path(listed[2]).name]
    ignored = (DEPLOY.parent / ".gitignore").read_text().splitlines()
    assert listed[2] in ignored, "what a machine scrapes is no part of the repository"


def test_promtool_accepts_every_panel_s_query(tmp_path):
    records = [
        {"record": f"panel:n{number}", "expr": re.sub(r"\$\w+", ".*", query)}
        for number, query in enumerate(QUERIES.values())
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))
    assert f"{len(QUERIES)} rules found" in accepted("promtool", "check", "rules", file)
    records[0]["expr"] += " )"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))
    assert run_tool("promtool", "check", "rules", file).returncode != 0


SECONDS = re.compile(r"_seconds\b(?!_bucket)|^time\(\)")


@pytest.mark.parametrize(
    "panel", [p for d in DASHBOARDS.values() for p in d.panels], ids=lambda p: p.title
)
def test_a_panel_has_one_axis_for_one_unit(panel):
    for query in panel.queries:
        in_seconds = bool(SECONDS.search(query)) or "histogram_quantile" in query
        assert in_seconds == (panel.unit == "s"), query


def test_each_alert_fires_and_keeps_silent_as_its_cases_say():
    accepted("promtool", "test", "rules", CASES)


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    cases = [
        case
        for test in yaml.safe_load(CASES.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    names = {rule["alert"] for rule in ALERTS}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_an_alert_says_what_why_and_what_to_do(rule):
    assert set(rule["annotations"]) == {"summary", "description", "command"}
    assert rule["labels"]["severity"] in {"page", "ticket"}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_dashboard_files_are_as_their_tables_say(name):
    text = (FOLDER / f"{name}.json").read_text()
    assert text == page(DASHBOARDS[name]), "run: make docs"
    body = json.loads(text)
    places = [panel["gridPos"] for panel in body["panels"]]
    taken = {
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    }
    assert len(taken) == sum(at["w"] * at["h"] for at in places), "panels overlap"
    assert all(at["x"] + at["w"] <= 24 for at in places)
    variables = {one["name"] for one in body["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__all"}
    assert used <= variables


def test_the_pages_for_operators_are_as_the_code_says():
    assert operator_pages.METRICS.read_text() == operator_pages.metrics_page(), "run: make docs"
    assert operator_pages.ENV.read_text() == operator_pages.env_page(), "run: make docs"
