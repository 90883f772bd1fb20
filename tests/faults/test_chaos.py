"""The chaos run, short: a few seeds of few items. `make chaos` runs long ones."""

from __future__ import annotations

import asyncio
import hashlib
import json
from contextlib import contextmanager

import pytest
import redis

from common.ids import RunName
from common.keys import RQ_QUEUE_PREFIX, RQ_QUEUES
from consumer.stopping import end_tasks
from tests.faults.chaos import SHORT_ITEMS, run_chaos, secrets_shown
from tests.faults.schedule import HANDS, KINDS, SERVICES, deal, draw
from tests.faults.stage import running_redis
from tests.faults.watch import LONG_ENOUGH_SECONDS, Looker, Sampler
from tests.support.servers import eventually

# Of the kinds and times that the recorded seeds 1 to 20 draw: those records are of these faults.
RECORDED = "3a3268e94cb41d5e38fe05e69f803f14a39c1c1fa5bf6200699e0d5b8e7e0e5b"


@pytest.mark.row("A1")
@pytest.mark.row("G1")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(1, HANDS + 1))
async def test_under_random_faults_each_item_ends_once(s3_server, tmp_path, seed):
    report = await run_chaos(
        seed, SHORT_ITEMS, deal(seed), s3=s3_server, folder=tmp_path, say=print
    )
    assert report.problems == []
    assert (report.lost, report.doubled) == (0, 0)
    assert report.committed + report.dead == SHORT_ITEMS
    assert report.samples > 0
    assert min(report.looks, report.requeued) > 0


def test_a_seed_gives_its_schedule_again_and_every_kind_its_turn():
    faults = draw(7, 2 * len(KINDS))
    assert faults == draw(7, 2 * len(KINDS)) != draw(8, 2 * len(KINDS))
    assert all(sum(fault.kind == kind for fault in faults) == 2 for kind in KINDS)
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)


def test_the_short_runs_deal_every_kind_once_among_them():
    dealt = [fault.kind for seed in range(1, HANDS + 1) for fault in deal(seed)]
    assert sorted(dealt) == sorted(KINDS)
    assert deal(1) == deal(1) != deal(1 + HANDS)
    assert [fault.kind for fault in deal(1)] != [fault.kind for fault in deal(2)]


def test_a_reboot_brings_all_back_in_an_order_of_the_seed():
    def orders(seed):
        return [fault.victim for fault in draw(seed, 60) if fault.kind == "host.reboot"]

    assert orders(1) == orders(1)
    assert all(sorted(order.split()) == sorted(SERVICES) for order in orders(1))
    assert len({order for seed in range(1, 9) for order in orders(seed)}) > 16


def test_the_recorded_seeds_draw_the_faults_that_were_recorded():
    drawn = [[(fault.kind, fault.at) for fault in draw(seed, 40)] for seed in range(1, 21)]
    assert hashlib.sha256(json.dumps(drawn).encode()).hexdigest() == RECORDED


@contextmanager
def looker_of(user, folder):
    with running_redis(folder / "redis") as server:
        yield Looker(server, RunName("chaos"), 10, asyncio.Lock(), user)


async def test_what_rqs_tools_may_not_do_is_a_finding(tmp_path):
    with looker_of("monitor", tmp_path) as looker:
        with redis.Redis.from_url(looker.server.url) as admin:
            admin.sadd(RQ_QUEUES, f"{RQ_QUEUE_PREFIX}{looker.run}")
        watching = asyncio.create_task(looker.watch())
        sampler = Sampler(looker.server.url, looker.run)
        sampling = asyncio.create_task(sampler.watch())
        await looker._command("info")
        looker.enough.set()
        await watching
        await eventually(lambda: sampler.denied)
        await end_tasks([sampling])
    assert sampler.denied == {"monitor: zremrangebyscore (command)"}
    assert any("a look failed while Redis was up: NoPerm" in text for text in looker.problems)
    assert any("`rq info` ended with 1:" in text for text in looker.problems)
    assert looker.commands.total() == 0


async def test_what_fails_while_redis_is_away_is_no_finding(tmp_path):
    with looker_of("producer", tmp_path) as looker:
        looker.server.kill()
        watching = asyncio.create_task(looker.watch())
        assert not await looker._command("requeue")
        assert looker.commands.total() == 0
        await asyncio.to_thread(looker.server.start)
        assert await looker._command("requeue")
        looker.enough.set()
        await watching
    assert looker.problems == []
    assert looker.commands == {"requeue": 1}


def test_what_was_never_done_in_a_long_run_is_a_finding():
    looker = Looker(None, RunName("chaos"), 10, None)
    assert looker.missing(commands=True) == []  # it was over at once
    looker.seconds = LONG_ENOUGH_SECONDS
    assert len(looker.missing(commands=False)) == 3
    assert len(looker.missing(commands=True)) == 5
    looker.looks, looker.requeued, looker.workers = 3, 1, {"one"}
    looker.commands.update(["info"])
    (finding,) = looker.missing(commands=True)
    assert "`rq requeue`" in finding


def test_a_secret_in_a_log_is_found(tmp_path):
    (tmp_path / "sink-0").mkdir()
    log = tmp_path / "sink-0" / "stderr"
    log.write_text("it began\nredis://sink:hidden@127.0.0.1\n")
    assert secrets_shown(tmp_path, ["other"]) == []
    assert secrets_shown(tmp_path, ["other", "hidden"]) == ["sink-0/stderr shows a secret"]
