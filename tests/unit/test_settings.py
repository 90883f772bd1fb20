"""Settings: flag, then environment, then file, then default; errors name the place."""

from __future__ import annotations

import os

import pytest

from common.errors import UsageError
from common.settings import Settings, load_settings, names_of, origin_of


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(("GENQ_", "AWS_", "REDIS_", "RQ_", "S3_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_a_flag_goes_before_the_environment_before_the_file(monkeypatch, tmp_path):
    assert load_settings().sink_rows == 500
    (tmp_path / "genq.toml").write_text("sink_rows = 3\n")
    assert load_settings().sink_rows == 3
    assert origin_of("sink_rows", {}) == "genq.toml"
    monkeypatch.setenv("GENQ_SINK_ROWS", "4")
    assert load_settings().sink_rows == 4
    assert origin_of("sink_rows", {}) == "GENQ_SINK_ROWS"
    assert load_settings(sink_rows=5).sink_rows == 5
    assert origin_of("sink_rows", {"sink_rows": 5}) == "--sink-rows"
    assert load_settings(sink_rows=None).sink_rows == 4


@pytest.mark.parametrize("name", ["REDIS_URL", "RQ_REDIS_URL", "GENQ_REDIS_URL"])
def test_the_names_that_people_have_are_accepted(monkeypatch, name):
    monkeypatch.setenv(name, "redis://elsewhere:1/0")
    assert load_settings().redis_url.get_secret_value() == "redis://elsewhere:1/0"
    assert origin_of("redis_url", {}) == name


def test_ours_goes_before_theirs(monkeypatch):
    for name in reversed(names_of("redis_url")):
        monkeypatch.setenv(name, f"redis://{name.lower()}")
        assert load_settings().redis_url.get_secret_value() == f"redis://{name.lower()}"


def test_a_bad_value_names_itself_and_its_place(monkeypatch):
    monkeypatch.setenv("GENQ_SINK_ROWS", "many")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert "sink_rows cannot be 'many'" in caught.value.what
    assert "GENQ_SINK_ROWS" in caught.value.why


def test_a_bad_secret_is_not_shown(monkeypatch, tmp_path):
    (tmp_path / "genq.toml").write_text("s3_secret_key = 12345678\n")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert "12345678" not in str(caught.value)


def test_an_unknown_name_in_the_file_is_refused(tmp_path):
    (tmp_path / "genq.toml").write_text("sink_row = 3\n")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert "'sink_row' is not a setting" in caught.value.what
    assert "genq.toml" in caught.value.why


def test_a_broken_file_and_a_missing_one_are_named(monkeypatch, tmp_path):
    (tmp_path / "genq.toml").write_text("sink_rows = \n")
    with pytest.raises(UsageError, match=r"genq\.toml cannot be read"):
        load_settings()
    monkeypatch.setenv("GENQ_CONFIG", "elsewhere.toml")
    with pytest.raises(UsageError, match="is not there"):
        load_settings()


def test_renewal_must_leave_room_for_a_lost_one():
    with pytest.raises(UsageError, match="too late"):
        load_settings(lease_seconds=10.0)
    assert load_settings(lease_seconds=10.0, renew_seconds=3.0).limits().lease_seconds == 10.0


def test_secrets_do_not_show_in_a_repr(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    monkeypatch.setenv("REDIS_URL", "redis://:planted-secret@host")
    assert "planted-secret" not in repr(load_settings())


def test_every_setting_has_a_variable():
    assert all(names_of(field)[0].startswith("GENQ_") for field in Settings.model_fields)
