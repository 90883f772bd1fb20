"""The main job end to end: real processes, some killed at random, proved from storage alone."""

from __future__ import annotations

import json
import random

import pytest

from common.ids import RunName
from common.objectstore import RunPaths
from common.prove import prove
from tests.support.fleet import SHORT_LEASES, Fleet
from tests.support.servers import eventually_sync
from tests.support.tiny_tokenizer import build_model_folder

ITEMS = 400
CONSUMERS = ("consumer-0", "consumer-1", "consumer-2")
SINKS = ("sink-0", "sink-1")


@pytest.fixture
def fleet(service_env, tmp_path):
    fleet = Fleet({**service_env, **SHORT_LEASES}, tmp_path)
    yield fleet
    fleet.close()
    eventually_sync(lambda: not fleet.leftovers(), 15)


def write_rows(path, count):
    lines = (json.dumps({"id": f"r{i}", "prompt": f"question {i}"}) for i in range(count))
    path.write_text("\n".join(lines))
    return str(path)


def start(fleet, name, model):
    if name in SINKS:
        fleet.start(name, "gen-sink", "--rows", "40", "--seconds", "1")
    else:
        flags = ("--token-seconds", "0.002", "--answer-tokens", "60")
        fleet.start(
            name,
            "gen-consumer",
            *("--model", model, "--max-running", "8", "--", *flags),
        )


@pytest.mark.faults  # the chaos runs of tests/faults stay in `make test`
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1])
def test_services_killed_at_random_leave_each_item_committed_once(fleet, store, tmp_path, seed):
    chance = random.Random(seed)
    model = str(build_model_folder(tmp_path / "tiny-model"))
    rows = write_rows(tmp_path / "rows.jsonl", ITEMS)
    loaded = fleet.producer("load", rows, "--run", "killed", "--model", model)
    assert loaded.returncode == 0, loaded.stderr
    for name in (*CONSUMERS, *SINKS):
        start(fleet, name, model)
    committed = 0
    for victim in chance.sample([*CONSUMERS, *SINKS, *CONSUMERS], 6):
        goal = min(ITEMS * 3 // 4, committed + chance.randrange(10, 50))
        committed = eventually_sync(lambda goal=goal: _committed(fleet, goal), 60)
        if fleet.alive(victim):
            fleet.kill(victim)
        start(fleet, victim, model)
    paths = RunPaths(RunName("killed"))
    try:
        eventually_sync(lambda: store.stat(paths.success), 120)
    except AssertionError:
        raise AssertionError(fleet.last_words()) from None
    proof = prove(store, RunName("killed"))
    assert proof.problems == []
    assert (proof.committed, proof.dead) == (ITEMS, 0)
    verified = fleet.producer("verify", "killed")
    assert verified.returncode == 0, verified.stderr


def _committed(fleet, goal):
    committed = fleet.counts("killed").committed
    return committed if committed >= goal else 0


@pytest.mark.slow  # a whole lease of the default 60 s has to pass
@pytest.mark.engine
@pytest.mark.timeout(240)
def test_a_consumer_of_the_real_model_killed_at_the_default_lease_times(
    service_env, store, tmp_path
):
    """Nothing is shortened here: the lease is 60 s, as users have it."""
    fleet = Fleet(dict(service_env), tmp_path)
    rows = write_rows(tmp_path / "rows.jsonl", 12)
    consume = ("gen-consumer", "--engine", "llamacpp", "--model", "smollm2", "--max-running", "4")
    try:
        load = ("load", rows, "--run", "real", "--model", "smollm2", "--max-tokens", "24")
        loaded = fleet.producer(*load)
        assert loaded.returncode == 0, loaded.stderr
        fleet.start("sink", "gen-sink", "--seconds", "2", "--burst")
        fleet.start("first", *consume)
        eventually_sync(lambda: _answered(fleet) >= 2, 90)
        fleet.kill("first")
        leased = fleet.counts("real").leased
        fleet.start("second", *consume)
        paths = RunPaths(RunName("real"))
        eventually_sync(lambda: store.stat(paths.success), 150)
        assert prove(store, RunName("real")).problems == []
        assert leased > 0, "the kill came when nothing was leased: it showed nothing"
    except AssertionError:
        raise AssertionError(fleet.last_words()) from None
    finally:
        fleet.close()
    eventually_sync(lambda: not fleet.leftovers(), 15)


def _answered(fleet):
    counts = fleet.counts("real")
    return counts.generated + counts.committed
