"""run.json is put up by one conditional PUT: a lost answer, a conflict, a faster other load."""

import dataclasses

import pytest
import stamina

from common import codec
from common.errors import StoreError
from common.objectstore import RunPaths
from common.prove import read_manifest
from common.records import RunManifest, RunSettings
from producer.manifest import publish
from tests.support.modelstore import ModelStore

MANIFEST = RunManifest(
    run="r",
    settings=RunSettings(model="m", model_fingerprint=""),
    fingerprint="f" * 64,
    rows=1,
    shard_rows=1000,
    shards=[],
    created="2026-01-01T00:00:00+00:00",
    source="mine",
    genq_version="0",
)
OTHERS = dataclasses.replace(MANIFEST, source="another's")


@pytest.fixture(autouse=True)
def _no_waiting():
    with stamina.set_testing(True, attempts=5):
        yield


def failing(moment, times):
    """Fail the first ``times`` conditional PUTs at ``moment``."""
    left = [times]

    def fault(call, when):
        if call == "create" and when == moment and left[0]:
            left[0] -= 1
            return True
        return False

    return fault


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("times", [0, 1, 3])
def test_it_stands_in_the_end_whatever_answers_were_lost(moment, times):
    store = ModelStore()
    store.fault = failing(moment, times)
    assert publish(store, MANIFEST) == MANIFEST
    assert read_manifest(store, "r") == MANIFEST


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_another_load_put_up_is_returned_and_not_touched(moment):
    key = RunPaths("r").run_json
    store = ModelStore({key: (codec.dumps(OTHERS), {})})
    store.fault = failing(moment, 1)
    assert publish(store, MANIFEST) == OTHERS
    assert read_manifest(store, "r") == OTHERS


def test_a_store_that_never_takes_it_is_an_error_with_a_way_on():
    store = ModelStore()
    store.fault = failing("before", 99)
    with pytest.raises(StoreError, match="could not be created") as caught:
        publish(store, MANIFEST)
    assert "same command again" in caught.value.fix
