"""The kustomizations: built, known to Kubernetes field by field, confined, with time to drain."""

from __future__ import annotations

import re
import shutil

import kubernetes_validate
import pytest
import redis
import yaml

from common.ids import RunName
from common.keys import RunKeys
from common.settings import Settings
from tests.support.tools import (
    AFTER_DRAIN_SECONDS,
    DEPLOY,
    ENGINE_END_SECONDS,
    KNOWN_VARIABLES,
    accepted,
)

K8S = DEPLOY / "k8s"
BUILDS = [K8S / "base", *sorted((K8S / "overlays").iterdir())]


def built(folder):
    return list(yaml.safe_load_all(accepted("kubectl", "kustomize", folder)))


@pytest.fixture(scope="module")
def objects():
    return {folder.name: built(folder) for folder in BUILDS}


def of_kind(found, kind):
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def pods(found):
    return {
        name: one["spec"]["template"]["spec"] for name, one in of_kind(found, "Deployment").items()
    }


def container(pod):
    (one,) = pod["containers"]
    return one, {entry["name"]: entry.get("value") for entry in one["env"]}


@pytest.mark.parametrize("name", [folder.name for folder in BUILDS])
def test_kubernetes_knows_every_field(objects, name):
    for one in objects[name]:
        if not one["apiVersion"].startswith("keda.sh"):
            kubernetes_validate.validate(one, "1.37", strict=True)
    misspelt = {**of_kind(objects[name], "Service")["gen-exporter"], "spce": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(misspelt, "1.37", strict=True)


def test_each_pod_is_confined_watched_and_knows_its_settings(objects):
    for found in objects.values():
        settings = next(iter(of_kind(found, "ConfigMap").values()))["data"]
        assert set(settings) <= KNOWN_VARIABLES
        for name, pod in pods(found).items():
            one, env = container(pod)
            assert pod["enableServiceLinks"] is False, f"{name}: they may look like settings"
            assert pod["securityContext"]["runAsNonRoot"] is True, name
            assert one["securityContext"]["readOnlyRootFilesystem"] is True, name
            assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            assert env["GENQ_METRICS_PORT"] == str(one["ports"][0]["containerPort"]), name
            assert one["livenessProbe"]["httpGet"]["path"] == "/healthz", name
            start = one["startupProbe"]
            waits = Settings.model_fields["wait_seconds"].default
            assert start["periodSeconds"] * start["failureThreshold"] > waits, name
            mounted = {mount["mountPath"] for mount in one["volumeMounts"]}
            files = [value for key, value in env.items() if key.endswith("_FILE")]
            assert {path.rpartition("/")[0] for path in files} <= mounted, name


def test_pods_have_the_time_that_a_drain_takes(objects):
    for name, found in objects.items():
        pod = pods(found)["gen-consumer"]
        _, env = container(pod)
        takes = float(env["GENQ_DRAIN_SECONDS"]) + AFTER_DRAIN_SECONDS
        # A preemptible node gives less than the engine's own end may take: it may be killed then.
        takes += 0 if name == "preemptible" else ENGINE_END_SECONDS
        assert takes <= pod["terminationGracePeriodSeconds"], name


def test_each_consumer_has_one_card_and_disruptions_are_bounded(objects):
    for found in objects.values():
        one, _ = container(pods(found)["gen-consumer"])
        assert one["resources"]["limits"]["nvidia.com/gpu"] == 1
        budgets = of_kind(found, "PodDisruptionBudget")
        for name in ("gen-consumer", "gen-sink"):
            selected = budgets[name]["spec"]["selector"]["matchLabels"]
            template = of_kind(found, "Deployment")[name]["spec"]["template"]["metadata"]
            assert selected.items() <= template["labels"].items()


def test_the_scaler_goes_to_zero_and_asks_for_what_the_exporter_shows(objects):
    (scaler,) = of_kind(objects["preemptible"], "ScaledObject").values()
    spec = scaler["spec"]
    assert spec["scaleTargetRef"]["name"] in of_kind(objects["preemptible"], "Deployment")
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 40)
    # The fields of the custom resource, as its definition has them.
    known = {
        "scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval",
        "cooldownPeriod", "advanced", "triggers",
    }  # fmt: skip
    assert set(spec) <= known
    (trigger,) = spec["triggers"]
    assert set(trigger) <= {"type", "metadata", "authenticationRef"}
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_the_scaler_that_asks_redis_can_be_built_upon_the_base(tmp_path):
    for name in ("base", "components"):
        shutil.copytree(K8S / name, tmp_path / name)
    mine = tmp_path / "mine" / "kustomization.yaml"
    mine.parent.mkdir()
    mine.write_text("resources: [../base]\ncomponents: [../components/keda-redis]\n")
    (scaler,) = of_kind(built(mine.parent), "ScaledObject").values()
    (trigger,) = scaler["spec"]["triggers"]
    assert trigger["metadata"]["listName"] == RunKeys(RunName("RUN")).queue
    assert trigger["authenticationRef"]["name"] in of_kind(
        built(mine.parent), "TriggerAuthentication"
    )


def test_the_user_that_is_advised_for_keda_can_do_what_keda_does_and_no_more(redis_url):
    text = (K8S / "components" / "keda-redis" / "scaledobject.yaml").read_text()
    (rule,) = re.findall(r"user keda on #HASH (.*)", text)
    with redis.Redis.from_url(redis_url, protocol=2) as admin:
        admin.execute_command("ACL", "SETUSER", "keda", "on", ">pw", *rule.split())
        admin.rpush("rq:queue:RUN", "a", "b")
        port = admin.connection_pool.connection_kwargs["port"]
        try:
            with redis.Redis(port=port, username="keda", password="pw", protocol=2) as keda:
                kind = "if redis.call('type', KEYS[1]).ok == 'list' then "
                ask = kind + "return redis.call('llen', KEYS[1]) end"
                assert keda.eval(ask, 1, "rq:queue:RUN") == 2
                for more in ("redis.call('del', KEYS[1])", "redis.call('lpop', KEYS[1])"):
                    with pytest.raises(redis.exceptions.ResponseError, match="no permissions"):
                        keda.eval(f"return {more}", 1, "rq:queue:RUN")
        finally:
            admin.execute_command("ACL", "DELUSER", "keda")


def test_the_scaler_s_query_counts_what_may_be_worked_on(objects, tmp_path):
    (scaler,) = of_kind(objects["preemptible"], "ScaledObject").values()
    query = scaler["spec"]["triggers"][0]["metadata"]["query"]
    series = [
        ('genq_run_items{run="a",place="queued"}', "700"),
        ('genq_run_items{run="a",place="leased"}', "96"),
        ('genq_run_items{run="a",place="committed"}', "5000"),
        ('genq_run_status{run="a",status="generating"}', "1"),
        ('genq_run_items{run="next",place="queued"}', "40"),
        ('genq_run_status{run="next",status="waiting"}', "1"),
        ('genq_run_items{run="held",place="queued"}', "9000"),
        ('genq_run_status{run="held",status="held"}', "1"),
        ('genq_run_status{run="held",status="generating"}', "0"),
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": f"{value}x5"} for name, value in series],
        "promql_expr_test": [
            {"expr": query, "eval_time": "1m", "exp_samples": [{"labels": "{}", "value": 836}]},
            {"expr": query, "eval_time": "1h", "exp_samples": [{"labels": "{}", "value": 0}]},
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    accepted("promtool", "test", "rules", file)
