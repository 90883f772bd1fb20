"""Addresses as they may be shown, and addresses that are refused because they would be."""

from __future__ import annotations

import pytest

from common.errors import UsageError
from common.redis_client import open_client, safe_url
from common.s3 import open_store
from common.settings import load_settings
from consumer.start import Options, engine_spec


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:hush@host:6379/0", "redis://host:6379/0"),
        ("rediss://host/2?password=hush", "rediss://host/2"),
        ("unix:///run/redis.sock?password=hush", "unix:///run/redis.sock"),
        ("redis://:hush/hush@host:6379/0", "(the URL is not shown)"),
        ("redis://:hush#hush@host", "(the URL is not shown)"),
        ("redis://:hush?hush@host", "(the URL is not shown)"),
        ("redis://host/0?password=hush@hush", "(the URL is not shown)"),
        ("user:hush@host:6379", "(the URL is not shown)"),
        ("redis://host:hush", "(the URL is not shown)"),
        ("hush", "(the URL is not shown)"),
        ("redis://[hush", "(the URL is not shown)"),
    ],
)
def test_a_redis_url_is_shown_without_its_secrets(url, shown):
    assert safe_url(url) == shown


@pytest.mark.parametrize("url", ["redis://:hush/x@host", "hush@host", "redis://host:hush"])
def test_a_url_that_is_none_is_refused_without_quoting_it(url):
    with pytest.raises(UsageError) as caught:
        open_client(load_settings(redis_url=url), name="test")
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "%2F" in caught.value.fix


@pytest.mark.parametrize(
    "given",
    [
        {"store": "s3://me:hush@bucket/x"},
        {"store": "s3://bucket/x", "s3_endpoint": "http://me:hush@127.0.0.1:9000"},
    ],
)
def test_a_store_s_address_must_hold_no_key(given):
    with pytest.raises(UsageError) as caught:
        open_store(load_settings(**given))
    assert "hush" not in str(caught.value)
    assert "AWS_SECRET_ACCESS_KEY" in caught.value.fix


def test_an_engine_s_url_must_hold_no_key():
    with pytest.raises(UsageError) as caught:
        engine_spec(load_settings(model="m"), Options(url="http://me:hush@127.0.0.1:30000"))
    assert "hush" not in str(caught.value)
    assert "GENQ_ENGINE_KEY" in caught.value.fix
