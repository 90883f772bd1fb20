"""Secrets may stand in files, as service managers hand them out."""

from __future__ import annotations

import pytest

from common.errors import UsageError
from common.settings import load_settings, origin_of, secret_file_variables

PLANTED = "redis://sink:planted-secret@host:1/0"


@pytest.fixture
def secret(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "redis-url"
    path.write_text(PLANTED + "\n")
    monkeypatch.setenv("GENQ_REDIS_URL_FILE", str(path))
    return path


def test_a_secret_is_read_from_the_file_that_its_variable_names(secret):
    settings = load_settings()
    assert settings.redis_url.get_secret_value() == PLANTED
    assert origin_of("redis_url", {}) == "GENQ_REDIS_URL_FILE"
    assert "planted" not in repr(settings)


def test_the_variable_itself_goes_before_its_file_and_the_file_before_genq_toml(
    secret, monkeypatch, tmp_path
):
    (tmp_path / "genq.toml").write_text('redis_url = "redis://toml:1/0"\n')
    assert load_settings().redis_url.get_secret_value() == PLANTED
    monkeypatch.setenv("REDIS_URL", "redis://variable:1/0")
    assert load_settings().redis_url.get_secret_value() == PLANTED
    monkeypatch.setenv("GENQ_REDIS_URL", "redis://ours:1/0")
    assert load_settings().redis_url.get_secret_value() == "redis://ours:1/0"
    assert origin_of("redis_url", {}) == "GENQ_REDIS_URL"


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY_FILE", "GENQ_S3_SECRET_KEY_FILE"])
def test_names_that_people_have_work_too(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text("k")
    monkeypatch.setenv(name, str(tmp_path / "key"))
    secret = load_settings().s3_secret_key
    assert secret
    assert secret.get_secret_value() == "k"


def test_only_secrets_may_stand_in_files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "GENQ_ENGINE_KEY_FILE" in secret_file_variables()
    monkeypatch.setenv("GENQ_STORE_FILE", "x")
    with pytest.raises(UsageError, match="GENQ_STORE_FILE is not a setting"):
        load_settings()


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfeplanted", b"x" * 70_000])
def test_a_file_without_a_secret_is_named_and_not_quoted(secret, content):
    secret.unlink() if content is None else secret.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert str(secret) in caught.value.what
    assert "GENQ_REDIS_URL_FILE" in caught.value.why
    assert "planted" not in f"{caught.value.what}{caught.value.why}{caught.value.fix}"
