"""Commands that fail say why, with a way out, and never with the secret that they were given."""

from __future__ import annotations

import os

import pytest

from tests.support import forge
from tests.support.producers import Producer
from tests.support.secured_run import ROOT, clean_environment

SECRET = "planted-secret"  # part of every secret that is planted here
EVERYWHERE = {
    "HF_TOKEN": f"{SECRET}-hub",
    "GENQ_ENGINE_KEY": f"{SECRET}-engine",
    "GENQ_LOG_LEVEL": "debug",
    "GENQ_DEBUG": "1",  # tracebacks, with all causes
    "GENQ_START_SECONDS": "1",
    "GENQ_WAIT_SECONDS": "0",
    "PYTHONPATH": str(ROOT),
}
WRONG_PASSWORD = {"GENQ_REDIS_URL": "redis://:" + SECRET + "@{host}"}
WRONG_S3_KEY = {"GENQ_S3_SECRET_KEY": f"{SECRET}-s3", "GENQ_S3_SESSION_TOKEN": f"{SECRET}-session"}
LOAD = ("gen-producer", "load", "rows.jsonl", "--model", "m")
SINK = ("gen-sink", "--burst")
CONSUMER = ("gen-consumer", "--model", "m", "--burst")

CASES = {
    "the password is wrong": (("gen-producer", "status"), WRONG_PASSWORD, 4),
    "the same as JSON": (("gen-producer", "status", "--json"), WRONG_PASSWORD, 4),
    "the same, the sink": (SINK, WRONG_PASSWORD, 4),
    "the same, the consumer": (CONSUMER, WRONG_PASSWORD, 4),
    "the password holds a slash": (
        ("gen-producer", "status"),
        {"GENQ_REDIS_URL": f"redis://:{SECRET}/more@127.0.0.1:6379"},
        2,
    ),
    "the Redis URL has no scheme": (
        ("gen-producer", "status"),
        {"GENQ_REDIS_URL": f"user:{SECRET}@127.0.0.1:6379"},
        2,
    ),
    "nobody answers": (
        ("gen-producer", "status"),
        {"GENQ_REDIS_URL": f"redis://:{SECRET}@127.0.0.1:1"},
        4,
    ),
    "the S3 key is wrong": (LOAD, WRONG_S3_KEY, 5),
    "the same, the sink ": (SINK, WRONG_S3_KEY, 5),
    "the endpoint holds a key": (LOAD, {"GENQ_S3_ENDPOINT": f"http://me:{SECRET}@127.0.0.1:1"}, 2),
    "the store holds a key": (LOAD, {"GENQ_STORE": f"s3://me:{SECRET}@bucket/x"}, 2),
    "the engine is not there": ((*CONSUMER, "--url", "http://127.0.0.1:1"), {}, 6),
    "the engine's URL holds a key": (
        (*CONSUMER, "--url", f"http://me:{SECRET}-url@127.0.0.1:1"),
        {},
        2,
    ),
}
IN_FULL = ("the engine is not there", "the same, the sink ", "the engine's URL holds a key")
TOML = {
    "cut": f'redis_url = "redis://:{SECRET}@127.0.0.1\n',
    "of another type": f's3_session_token = ["{SECRET}"]\n',
    "no setting": f'hub_token = "{SECRET}"\n',
}


@pytest.fixture
def run(service_env, redis_server, tmp_path, monkeypatch, capsys):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "hello"}\n')
    ours = {name: value for name, value in service_env.items() if name not in os.environ}
    host = redis_server.url.rpartition("@")[2]

    def run(command, env, code):
        given = {name: value.replace("{host}", host) for name, value in env.items()}
        environment = {**clean_environment(), **ours, **EVERYWHERE, **given}
        if command[0] == "gen-producer":
            monkeypatch.chdir(tmp_path)
            said = Producer(environment, monkeypatch, capsys)(*command[1:], code=code)
            return said.out + said.err
        done = forge.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    return run


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.faults] * (case in IN_FULL)) for case in CASES],
)
def test_a_command_that_fails_shows_no_secret(run, case):
    command, env, code = CASES[case]
    said = run(command, env, code)
    assert SECRET not in said
    assert "This is a bug" not in said


@pytest.mark.parametrize("fault", TOML)
def test_a_settings_file_that_cannot_be_read_is_not_quoted(run, tmp_path, fault):
    (tmp_path / "genq.toml").write_text(TOML[fault])
    assert SECRET not in run(("gen-producer", "status"), {}, 2)


def test_a_state_folder_that_others_may_write_to_is_refused(run, service_env, tmp_path):
    folder = tmp_path / "state" / "sink"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    said = run(SINK, {}, 2)
    assert f"chmod 700 {folder}" in said
