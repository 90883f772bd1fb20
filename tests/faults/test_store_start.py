"""What is wrong with a store, or with one's right to it, is said at the start, with the way out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import structlog

from common.errors import StoreAwayError, StoreError
from common.objectstore import Created
from common.s3 import open_store
from deploy.embedded import free_ports
from tests.support.s3_exchange import ALL, CREATE, DELETE, GET, HEAD, LIST, PUT
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab, proven


def secret(text):
    from pydantic import SecretStr  # noqa: PLC0415 - used here only

    return SecretStr(text)


MISTAKES = {
    "secret key": (
        {"s3_secret_key": secret("wrong" * 8)},
        "SignatureDoesNotMatch",
        "AWS_SECRET_ACCESS_KEY",
    ),
    "access key": (
        {"s3_access_key": secret("nobody")},
        "InvalidAccessKeyId",
        "AWS_ACCESS_KEY_ID",
    ),
    "bucket": ({"store": "s3://no-such-bucket/x"}, "NoSuchBucket", "s3://no-such-bucket"),
    "TLS": ({"s3_endpoint": "https://"}, "SSL", "say http://"),
    "port": ({"s3_endpoint": "closed"}, "refused", "answers"),
}


@pytest.mark.row("E8")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_real_store_s_refusal_is_explained(settings, s3_server, mistake):
    update, why, way_out = MISTAKES[mistake]
    if update.get("s3_endpoint") == "https://":
        update = {"s3_endpoint": s3_server.endpoint.replace("http:", "https:")}
    if update.get("s3_endpoint") == "closed":
        update = {"s3_endpoint": f"http://127.0.0.1:{free_ports(1)[0]}"}
    with pytest.raises(StoreError) as caught:
        open_store(settings.model_copy(update=update)).probe()
    assert why in caught.value.why
    assert way_out in caught.value.fix
    assert isinstance(caught.value, StoreAwayError) == (mistake == "port")


@pytest.mark.row("E8")
def test_a_wrong_clock_is_named_by_a_real_store(settings, monkeypatch):
    def tomorrow():
        return datetime.now(UTC) + timedelta(days=1)

    monkeypatch.setattr("minio.time.utcnow", tomorrow)
    with pytest.raises(StoreError) as caught:
        open_store(settings).probe()
    assert "RequestTimeTooSkewed" in caught.value.why
    assert caught.value.fix == "Set this machine's clock."


REFUSALS = {
    "403 AccessDenied": "needs the rights to get, put, list and delete",
    "400 AuthorizationHeaderMalformed": "AWS_REGION",
    "301 PermanentRedirect": "AWS_REGION",
    "400 ExpiredToken": "AWS_SESSION_TOKEN",
    "403 RequestTimeTooSkewed": "clock",
    "501 NotImplemented": "--single-writer",
}
RIGHTS = {
    PUT: "write",
    CREATE: "write",
    GET: "read",
    HEAD: "look up",
    LIST: "list",
    DELETE: "delete",
}
CASES = [(name, PUT) for name in REFUSALS] + [("403 AccessDenied", one) for one in RIGHTS]


@pytest.mark.row("E8")
@pytest.mark.parametrize(("refusal", "operation"), CASES)
def test_what_other_stores_refuse_is_explained(settings, store_proxy, refusal, operation):
    """Their own answers, given by the proxy: this store knows no regions, sessions or rights."""
    store_proxy.fail(refusal, on={operation} if operation is not PUT else {PUT, CREATE})
    with pytest.raises(StoreError) as caught:
        open_store(settings.model_copy(update={"s3_endpoint": store_proxy.url})).probe()
    assert not isinstance(caught.value, StoreAwayError)
    assert caught.value.what.startswith(f"Cannot {RIGHTS[operation]} s3://")
    assert refusal.split()[1] in caught.value.why
    assert REFUSALS[refusal] in caught.value.fix
    assert store_proxy.count(operation, fault=refusal) <= 3  # once for each object: no repeats


@pytest.mark.row("E8")
@pytest.mark.parametrize("failure", ["503", "500", "429"])
def test_a_store_that_is_too_busy_is_waited_for_as_one_that_is_away(
    settings, store_proxy, monkeypatch, failure
):
    monkeypatch.setattr("common.s3.store.RETRY_ATTEMPTS", 1)
    store = open_store(settings.model_copy(update={"s3_endpoint": store_proxy.url}))
    store_proxy.fail(failure, on={GET, HEAD})
    for call in (store.get, store.stat):
        with pytest.raises(StoreAwayError):
            call("some/object")


@pytest.mark.row("E8")
def test_missing_keys_are_named(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setattr("common.s3.credentials._METADATA_SECONDS", 0.2)
    store = open_store(settings.model_copy(update={"s3_access_key": None}))
    for call in (store.probe, lambda: store.create("a", b"")):
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.fix.startswith("Name them: export AWS_ACCESS_KEY_ID=")


@pytest.mark.row("E8")
async def test_the_sink_says_what_is_wrong_in_three_lines_and_ends(processes):
    sink = processes.start("--burst", GENQ_STORE="s3://no-such-bucket/results")
    assert await sink.wait() == 5
    what, why, fix = sink.log().splitlines()[-3:]
    assert what.startswith("Error: Cannot write s3://no-such-bucket/results/")
    assert "NoSuchBucket" in why
    assert fix.startswith("  Correct GENQ_STORE, or create it: aws s3 mb s3://no-such-bucket --reg")
    assert "Traceback" not in sink.log()


@pytest.mark.row("E6")
async def test_a_store_that_ignores_conditions_is_refused_unless_there_is_one_writer(
    processes, store_proxy
):
    job = await processes.load("stripped", rows=12)
    await job.answer_all()
    store_proxy.fail("strip", on={CREATE})
    refused = processes.start("--burst", GENQ_S3_ENDPOINT=store_proxy.url)
    assert await refused.wait() == 5
    assert "ignores If-None-Match" in refused.log()
    assert "gen-sink --single-writer" in refused.log()
    flags = ("--burst", "--rows", "5", "--single-writer")
    sink = processes.start(*flags, GENQ_S3_ENDPOINT=store_proxy.url)
    assert await sink.wait() == 0, sink.log()
    await proven(job)
    assert not [one.key for one in job.store.list(".genq-probe")]


@pytest.mark.row("E6")
def test_a_probe_does_not_believe_an_answer_that_it_did_not_get(settings, store_proxy):
    """Of the two conditional PUTs that prove it, the second must be refused, not lost."""
    store = open_store(settings.model_copy(update={"s3_endpoint": store_proxy.url}))
    store_proxy.fail("503", on={CREATE}, times=1)
    store.probe()
    store_proxy.fail("strip", on={CREATE})
    with pytest.raises(StoreError, match="ignores If-None-Match"):
        store.probe()
    store_proxy.mend()
    store_proxy.fail("503", on={CREATE})
    with pytest.raises(StoreAwayError):
        store.probe()
    assert store.create("still-there", b"") is Created.UNKNOWN


OUTAGES = [
    "403 InvalidAccessKeyId",
    pytest.param("400 ExpiredToken", marks=pytest.mark.faults),
    pytest.param("403 AccessDenied", marks=pytest.mark.faults),
    pytest.param("404 NoSuchBucket", marks=pytest.mark.faults),
]


@pytest.mark.row("E8")
@pytest.mark.parametrize("refusal", OUTAGES)
async def test_a_right_that_is_lost_in_mid_run_is_waited_for(
    settings, store_proxy, monkeypatch, refusal
):
    monkeypatch.setattr("consumer.sink.outage.LONGEST_SECONDS", 0.2)
    store = open_store(settings.model_copy(update={"s3_endpoint": store_proxy.url}))
    job = await load_job(settings, "revoked", rows=12, store=store)
    async with local_lab(settings, job) as lab:
        with structlog.testing.capture_logs() as logs:
            serving = lab.start(lab.finish())
            await job.answer(await job.lease(5))
            await eventually(lambda: committed(job, 5), 60)
            store_proxy.fail(refusal)
            await job.answer_all()
            before = store_proxy.count(CREATE)
            await eventually(lambda: store_proxy.count(fault=refusal) > 3, 60)
            assert (await job.counts()).committed == 5
            assert not serving.done()
            store_proxy.mend()
            await serving
        assert before < store_proxy.count(CREATE)
        await proven(job)
    said = [one for one in logs if one.get("service") == "storage"]
    assert [one["event"] for one in said] == ["sink.away", "sink.back"]
    assert refusal.split()[1] in said[0]["why"]
    assert said[0]["fix"]


async def committed(job, count):
    return (await job.counts()).committed == count


@pytest.mark.row("E8")
def test_keys_that_are_renewed_in_their_file_come_into_force(
    settings, s3_server, monkeypatch, tmp_path
):
    monkeypatch.setattr("common.s3.credentials.FRESH_SECONDS", 0.0)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def hand_out(secret_key):
        file.write_text(
            f"[default]\naws_access_key_id = {s3_server.access_key}\n"
            f"aws_secret_access_key = {secret_key}\n"
        )

    hand_out("of-yesterday")
    store = open_store(settings.model_copy(update={"s3_access_key": None}))
    with pytest.raises(StoreError, match="SignatureDoesNotMatch"):
        store.create("a", b"1")
    hand_out(s3_server.secret_key)
    assert store.create("a", b"1") is Created.CREATED
    assert store.get("a") == b"1"


@pytest.mark.row("E10")
def test_a_store_that_lists_late_is_refused(settings, store_proxy):
    store_proxy.fail("stale", on={LIST})
    with pytest.raises(StoreError, match="does not list what was just written"):
        open_store(settings.model_copy(update={"s3_endpoint": store_proxy.url})).probe()


@pytest.mark.row("E3")
def test_a_start_survives_a_hiccup_of_each_operation(settings, store_proxy):
    for operation in ALL:
        store_proxy.fail("503", on={operation}, times=1)
    open_store(settings.model_copy(update={"s3_endpoint": store_proxy.url})).probe()
    assert store_proxy.count(fault="503") == 6
