"""Settings: flag, then environment, then file, then default; errors name the place."""

from __future__ import annotations

import os
import tomllib

import pytest

from common.errors import UsageError
from common.settings import (
    OTHER_VARIABLES,
    Settings,
    load_settings,
    names_of,
    origin_of,
    origin_text,
)
from tests.support.settings_example import PAGE, example


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


@pytest.mark.parametrize("name", names_of("redis_url"))
def test_a_variable_of_any_name_goes_before_the_file(monkeypatch, tmp_path, name):
    (tmp_path / "genq.toml").write_text('redis_url = "redis://from-the-file"\n')
    monkeypatch.setenv(name, "redis://from-the-variable")
    assert load_settings().redis_url.get_secret_value() == "redis://from-the-variable"


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
    assert caught.value.what == "'sink_row' is not a setting: did you mean sink_rows?"
    assert "genq.toml" in caught.value.why
    assert caught.value.fix == "Take it out    (or name it sink_rows)"


def test_an_unknown_variable_is_refused_and_the_nearest_is_named(monkeypatch):
    for known in (*OTHER_VARIABLES - {"GENQ_CONFIG"}, "GENQ_TEST_REDIS_SERVER"):
        monkeypatch.setenv(known, "x")
    load_settings()
    monkeypatch.setenv("GENQ_LEASE_SECOND", "3")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert (
        caught.value.what == "GENQ_LEASE_SECOND is not a setting: did you mean GENQ_LEASE_SECONDS?"
    )
    assert caught.value.fix == "unset GENQ_LEASE_SECOND    (or name it GENQ_LEASE_SECONDS)"
    monkeypatch.delenv("GENQ_LEASE_SECOND")
    monkeypatch.setenv("GENQ_QQQQQQ", "3")
    with pytest.raises(UsageError, match="has the names"):
        load_settings()


def test_what_a_setting_means_is_whole_where_it_stands_alone():
    for name, field in Settings.model_fields.items():
        about = field.description
        if about:
            assert about[0].isupper(), name
            assert about.endswith("."), name
            assert not about.startswith(("The same", "Where it")), name


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('lease_seconds = "x"', "Set it to a number."),
        ('sink_rows = "x"', "Set it to a whole number."),
        ('honesty = "x"', "Set it to true or false."),
        ('engine = "x"', "Set it to one of sglang, llamacpp."),
        ("store = 3", "Set it to a text."),
    ],
)
def test_the_kind_of_value_that_is_expected_is_said(tmp_path, text, kind):
    (tmp_path / "genq.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert caught.value.fix.startswith(kind)


def test_a_setting_that_is_needed_and_not_set_is_said_to_be_so(tmp_path):
    assert origin_of("store", {}) == "the default (GENQ_STORE is not set)"
    assert origin_text("store") == "GENQ_STORE is not set."
    (tmp_path / "genq.toml").write_text('store = "x"')
    assert origin_text("store") == "store comes from genq.toml."


def test_the_example_file_is_as_the_settings_are():
    assert PAGE.read_text() == example(), "make docs"
    lines = [line[1:] for line in example().splitlines() if line[1:2].isalpha()]
    set_by_default = "\n".join(line for line in lines if "(not set)" not in line)
    assert set(tomllib.loads(set_by_default)) < set(Settings.model_fields)


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
