"""Whether a run in Redis is the one that a command means."""

from __future__ import annotations

import pytest

from common.errors import ConflictError
from common.ids import Epoch, RunName
from common.queue.same_run import refuse_other_store
from common.records import RunInfo


def known(store):
    return RunInfo(
        run=RunName("one"),
        epoch=Epoch("e"),
        state="closed",
        priority=0,
        items=1,
        fingerprint="f",
        model="tiny",
        model_fingerprint="",
        created=0.0,
        store=store,
    )


def test_a_run_of_another_store_is_refused_and_its_own_store_is_named():
    with pytest.raises(ConflictError) as refused:
        refuse_other_store(known("s3://here/a"), "s3://here/b")
    assert "s3://here/a" in refused.value.why
    assert "s3://here/b" in refused.value.why
    assert refused.value.fix.endswith("export GENQ_STORE=s3://here/a")


@pytest.mark.parametrize(
    ("its", "given"), [("s3://here/a", "s3://here/a"), ("", "s3://here/b"), ("s3://here/a", "")]
)
def test_its_own_store_is_no_difference_and_neither_is_one_that_is_not_known(its, given):
    refuse_other_store(known(its), given)
