"""A refusal of the store names the variable or the file that the refused value came from."""

from __future__ import annotations

import pytest
from minio.error import S3Error

from common.s3.refusals import refusal

KEYS = ("S3_ACCESS_KEY", "S3_SECRET_KEY")


def way_out(code):
    error = S3Error(None, code, "no", "/b/k", "1", "2")
    where = {"url": "s3://b/p", "endpoint": "http://h", "region": "r"}
    found = refusal(error, verb="read", key="k", **where)
    return found.fix


@pytest.fixture(autouse=True)
def _bare(monkeypatch):
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in (*KEYS, "S3_SESSION_TOKEN", "S3_REGION", "STORE"):
        monkeypatch.delenv(f"GENQ_{name}", raising=False)


@pytest.mark.parametrize("names", [("GENQ_S3_ACCESS_KEY", "GENQ_S3_SECRET_KEY"),
                                   ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")])  # fmt: skip
def test_the_variable_that_counts_is_named(monkeypatch, names):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", *names):
        monkeypatch.setenv(name, "x")
    assert way_out("SignatureDoesNotMatch") == f"Check {names[1]}."
    assert way_out("InvalidAccessKeyId") == f"Check {names[0]}."
    assert way_out("AccessDenied").startswith(f"Check {names[0]};")


def test_a_file_is_named_and_the_machine_where_nothing_is_set(monkeypatch, tmp_path):
    said = way_out("SignatureDoesNotMatch")
    assert said == (
        "Check AWS_SECRET_ACCESS_KEY (none is set: ~/.aws/credentials or the machine's)."
    )
    (tmp_path / "secret").write_text("x\n", encoding="utf-8")
    monkeypatch.setenv("GENQ_S3_ACCESS_KEY", "x")
    monkeypatch.setenv("GENQ_S3_SECRET_KEY_FILE", str(tmp_path / "secret"))
    assert way_out("SignatureDoesNotMatch") == "Check GENQ_S3_SECRET_KEY_FILE."


def test_a_region_is_named_so_that_it_counts(monkeypatch):
    assert "export AWS_REGION=" in way_out("PermanentRedirect")
    monkeypatch.setenv("GENQ_S3_REGION", "nowhere")
    assert "export GENQ_S3_REGION=" in way_out("PermanentRedirect")
