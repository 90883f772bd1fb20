"""Containerfiles and compose.yaml: taken by their tools, pinned, confined, and agreeing."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest
import redis
import yaml
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.secured import USERS, make_secrets, secured_redis
from tests.support.tools import (
    AFTER_DRAIN_SECONDS,
    DEPLOY,
    ENGINE_END_SECONDS,
    ROOT,
    accepted,
    relative,
    run_tool,
)

COMPOSE = DEPLOY / "compose.yaml"
CONTAINERFILES = sorted(DEPLOY.glob("Containerfile*"))


@pytest.mark.parametrize("path", CONTAINERFILES, ids=relative)
def test_containerfiles_are_sound(path, tmp_path):
    accepted("hadolint", path)
    worse = tmp_path / "Containerfile"
    worse.write_text(path.read_text() + "RUN cd /tmp\nUSER root\n")
    assert run_tool("hadolint", worse).returncode != 0


@pytest.mark.parametrize("path", CONTAINERFILES, ids=relative)
def test_images_are_pinned_and_run_as_nobody_in_particular(path):
    text = path.read_text()
    (base,) = re.findall(r"^ARG BASE=(\S+)$", text, flags=re.MULTILINE)
    assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base)
    assert set(re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)) == {"${BASE}"}
    last = text.rpartition("FROM ")[2]
    assert re.findall(r"^USER (\S+)", last, flags=re.MULTILINE) == ["10001:10001"]
    for word in ("ENTRYPOINT", "CMD", "HEALTHCHECK"):
        assert re.search(rf"^ *({word}\b.*\\\n *CMD|{word}) \[", last, flags=re.MULTILINE), word
    assert "--require-hashes" in text
    copied = set(re.findall(r"requirements/\w+\.txt", text))
    assert all((ROOT / name).is_file() for name in copied)


@pytest.mark.parametrize("lock", ["services", "deploy"])
def test_images_hold_the_packages_that_were_tested(lock):
    pins = {
        name: dict(
            re.findall(
                r"^([\w.-]+)(?:\[\S+\])?==(\S+)",
                (ROOT / "requirements" / f"{name}.txt").read_text(),
                re.MULTILINE,
            )
        )
        for name in (lock, "test")
    }
    both = pins[lock].keys() & pins["test"].keys()
    assert len(both) > 3
    assert {name: pins[lock][name] for name in both} == {name: pins["test"][name] for name in both}


def test_the_builder_is_sent_what_the_images_need_and_no_more():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines, "all is left out, and then some let in"
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for pattern in packages["packages"]["find"]["include"]:
        name = pattern.removesuffix("*")
        assert {f"!{name}", f"!{name}/*.py"} & set(lines)


def compose(*profiles, **env):
    said = accepted(
        "docker-compose", "-f", COMPOSE, *[f"--profile={name}" for name in profiles], "config",
        env={"PATH": "/usr/bin:/bin", **env},
    )  # fmt: skip
    return yaml.safe_load(said)


@pytest.fixture(scope="module")
def composed():
    return compose("gpus", "tools", GENQ_MODEL="m")


def test_compose_takes_the_file_and_refuses_a_spoilt_one(tmp_path):
    assert set(compose()["services"]) >= {"redis", "store", "sink", "exporter", "prometheus"}
    assert "consumer-gpu3" in compose("gpu3")["services"]
    spoilt = tmp_path / "compose.yaml"
    spoilt.write_text(COMPOSE.read_text().replace("service_healthy", "service_well"))
    assert run_tool("docker-compose", "-f", spoilt, "config", "-q").returncode != 0


def test_each_container_is_confined(composed):
    for name, service in composed["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        if not service["image"].startswith("genq"):
            assert re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", service["image"]), name
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1", name
        secret = re.compile("KEY|URL|PASSWORD|TOKEN")
        for variable in service.get("environment", {}):
            assert not secret.search(variable) or variable.endswith("_FILE"), (name, variable)


def test_each_consumer_has_a_card_of_its_own_and_time_to_drain(composed):
    consumers = {n: s for n, s in composed["services"].items() if n.startswith("consumer-")}
    cards = {
        device_id
        for service in consumers.values()
        for device in service["deploy"]["resources"]["reservations"]["devices"]
        for device_id in device["device_ids"]
    }
    assert cards == {str(n) for n in range(8)} == {n[-1] for n in consumers}
    for service in consumers.values():
        assert service["stop_grace_period"] == "6m0s"
        drain = float(service["environment"]["GENQ_DRAIN_SECONDS"])
        assert drain + AFTER_DRAIN_SECONDS + ENGINE_END_SECONDS <= 360


def test_secrets_that_compose_names_are_those_that_the_script_makes(composed, tmp_path):
    script = DEPLOY / "make-secrets.sh"
    folder = tmp_path / "secrets"
    subprocess.run(["bash", script, folder, "host:1"], check=True, timeout=30, capture_output=True)
    made = {path.name for path in folder.iterdir()}
    assert {secret["file"].rpartition("/")[2] for secret in composed["secrets"].values()} <= made
    assert folder.stat().st_mode & 0o777 == 0o700
    acl = (folder / "users.acl").read_text()
    assert len(re.findall(r"^user \w+ on #[0-9a-f]{64} ", acl, flags=re.MULTILINE)) == 5
    url = (folder / "redis-url.sink").read_text()
    assert re.fullmatch(r"redis://sink:[0-9a-f]{48}@host:1/0\n", url)
    again = subprocess.run(
        ["bash", script, folder], check=False, timeout=30, capture_output=True, text=True
    )
    assert again.returncode == 7
    assert (folder / "users.acl").read_text() == acl
    assert f"mv {folder}" in again.stderr


def test_the_secrets_that_were_made_open_the_server_that_compose_starts(composed):
    command = composed["services"]["redis"]["command"]
    assert command == ["valkey-server", "/etc/genq/redis.conf", "--bind", "*"]
    with secured_redis(make_secrets) as server:
        for user in USERS:
            with server.client(user) as client:
                assert client.time()
        with (
            pytest.raises(redis.exceptions.AuthenticationError),
            redis.Redis(port=server.port, protocol=2, retry=Retry(NoBackoff(), 0)) as client,
        ):
            client.ping()


def test_what_prometheus_scrapes_is_what_compose_starts(composed):
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    found = {}
    for job in scraped["scrape_configs"]:
        for config in job.get("dns_sd_configs", []):
            found |= {name: str(config["port"]) for name in config["names"]}
        for config in job.get("static_configs", []):
            found |= dict(target.split(":") for target in config["targets"])
    found.pop("localhost")
    ports = {
        name: service["environment"]["GENQ_METRICS_PORT"]
        for name, service in composed["services"].items()
        if "GENQ_METRICS_PORT" in service.get("environment", {})
    }
    assert found == ports
