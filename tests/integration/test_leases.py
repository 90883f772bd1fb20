"""Fetching, keeping and handing back leases, against a real Valkey and a real S3 server."""

from __future__ import annotations

import pytest
import redis.asyncio
import structlog

from common.codec import compress, dumps
from common.errors import QueueError, StoreAwayError
from common.ids import RunName, Token, WorkerName, new_nonce
from common.keys import RunKeys
from common.objectstore import RunPaths
from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.run_state import Runs
from common.records import Failure, Finished, RunSettings, Verdict
from consumer.engine.api import EngineFacts
from consumer.leases.catalogue import NO_RUN, UNEQUAL, UNREADABLE, Catalogue, serves
from tests.support.consumers import enqueue_run, rows_of, store_rows
from tests.support.leases import FACTS, WORKER, Leases, delivering
from tests.support.servers import eventually

TINY = RunSettings(model="some/where/tiny", model_fingerprint="")


def catalogue_of(client, store, **more) -> Catalogue:
    limits = QueueLimits()
    return Catalogue(client, Runs(client, limits), store, limits, **more)


@pytest.fixture
async def client(redis_url):
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


def finished(work, text: str = "x") -> Finished:
    payload = compress(dumps({"content": text}))
    return Finished(work.leased.item, work.leased.token, Verdict.OK, payload, 3, 5)


async def counts(client, run: str):
    return await Runs(client, QueueLimits()).sample(RunName(run))


async def test_items_come_with_their_rows_and_samples(client, store) -> None:
    settings = RunSettings(model="tiny", model_fingerprint="", samples=2)
    manifest = store_rows(store, "two", rows_of("a", "b", "c"), settings)
    await enqueue_run(client, manifest)
    works = await Leases(client, store).fetch(10)
    seen = [(w.leased.item, w.row.id, w.sample) for w in works]
    assert seen == [(2 * i + s, f"row-{i}", s) for i in range(3) for s in range(2)]


async def test_the_best_run_is_served_first_and_others_fill_up(client, store) -> None:
    for name, priority in (("low", 0), ("high", 5), ("other-model", 9)):
        model = "another" if name == "other-model" else "tiny"
        settings = RunSettings(model=model, model_fingerprint="")
        manifest = store_rows(store, name, rows_of(name, name), settings)
        await enqueue_run(client, manifest, priority=priority)
    works = await Leases(client, store).fetch(3)
    assert [w.held.run for w in works] == ["high", "high", "low"]
    only = await Leases(client, store, only=[RunName("low")]).fetch(3)
    assert [w.held.run for w in only] == ["low"]


async def test_a_known_fingerprint_must_match_and_an_unknown_one_may(client, store) -> None:
    manifest = store_rows(store, "one", rows_of("a"), TINY)
    await enqueue_run(client, manifest)
    info = await Runs(client, QueueLimits()).get(RunName("one"))
    known = EngineFacts("sglang", "0", "tiny", "aa", 300, 200, 8, None)
    other = RunSettings(model="tiny", model_fingerprint="bb")
    assert serves(info, known)
    await enqueue_run(client, store_rows(store, "two", rows_of("a"), other))
    info = await Runs(client, QueueLimits()).get(RunName("two"))
    assert serves(info, FACTS)
    assert not serves(info, known)


@pytest.mark.row("F13")
async def test_a_missing_shard_gives_the_leases_back(client, store) -> None:
    manifest = store_rows(store, "one", rows_of("a", "b"), TINY)
    store.delete(RunPaths(RunName("one")).prompts(manifest.fingerprint, 0))
    await enqueue_run(client, manifest)
    leases = Leases(client, store)
    async with delivering(leases.outbox):
        assert await leases.fetch(5) == []
        await leases.outbox.drained()
        assert await leases.fetch(5) == []  # left alone for a while
    seen = await counts(client, "one")
    assert (seen.queued, seen.leased) == (2, 0)
    assert len(leases.keeper) == 0


async def test_a_shard_with_other_bytes_is_refused(client, store) -> None:
    manifest = store_rows(store, "one", rows_of("a"), TINY)
    key = RunPaths(RunName("one")).prompts(manifest.fingerprint, 0)
    store.put(key, compress(dumps(rows_of("b")[0]) + b"\n"))
    await enqueue_run(client, manifest)
    leases = Leases(client, store)
    async with delivering(leases.outbox):
        assert await leases.fetch(5) == []
        await leases.outbox.drained()
    assert (await counts(client, "one")).queued == 1


async def test_what_keeps_a_consumer_from_a_run_is_forgotten_when_the_run_is_over(
    client, store
) -> None:
    async def objection(_info) -> str:
        return "it answers otherwise"

    runs, catalogue = Runs(client, QueueLimits()), catalogue_of(client, store, objection=objection)
    equal = RunSettings(model="tiny", model_fingerprint="", reproducible=True)
    for name, settings in (("refused", TINY), ("unequal", equal), ("unreadable", TINY)):
        await enqueue_run(client, store_rows(store, name, rows_of("a"), settings))
    store.delete(RunPaths(RunName("unreadable")).run_json)
    await catalogue.refresh(FACTS)
    assert (catalogue.refused, catalogue.unequal) == ({"refused"}, {"unequal"})
    assert set(catalogue.unreadable) == {"unreadable"}
    closed = [catalogue.closed]
    for name in ("unreadable", "unequal", "refused"):
        await runs.cancel(RunName(name))
        await catalogue.refresh(FACTS)
        closed.append(catalogue.closed)
    assert closed[:2] == [UNREADABLE, UNEQUAL]
    assert "differ" in closed[2]
    assert closed[3] == NO_RUN


async def test_a_run_whose_store_was_away_is_served_when_it_is_back(
    client, store, monkeypatch
) -> None:
    await enqueue_run(client, store_rows(store, "one", rows_of("a"), TINY))
    catalogue, get = catalogue_of(client, store), store.get

    def away(_key) -> bytes:
        raise StoreAwayError("it does not answer")

    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            monkeypatch.setattr(store, "get", away)
            for _ in range(3):
                await catalogue.refresh(FACTS)
            assert (catalogue.closed, catalogue.store_away) == (UNREADABLE, True)
            monkeypatch.setattr(store, "get", get)
            catalogue._manifests.clear()
            await catalogue.refresh(FACTS)
            assert (catalogue.closed, catalogue.store_away) == ("", False)
            catalogue._manifests.clear()
    said = [one["event"] for one in logs]
    assert said == 2 * ["run left alone", "run can be read again"]  # each outage once


async def test_results_failures_and_releases_reach_the_queue(client, store) -> None:
    await enqueue_run(client, store_rows(store, "one", rows_of(*"abcd"), TINY))
    leases = Leases(client, store)
    good, bad, back, dead = await leases.fetch(4)
    async with delivering(leases.outbox):
        leases.outbox.finish(good.held, finished(good))
        for work, final in ((bad, False), (dead, True)):
            item, token = work.leased.item, work.leased.token
            failure = Failure(item, token, Verdict.EMPTY, "no text", charged=True, final=final)
            leases.outbox.fail(work.held, failure)
        leases.outbox.release(back.held)
        await leases.outbox.drained()
    seen = await counts(client, "one")
    assert (seen.generated, seen.waiting, seen.dead, seen.queued, seen.leased) == (1, 1, 1, 1, 0)
    tally = leases.outbox.tally
    assert (tally.succeeded, tally.failed, tally.released) == (1, 2, 1)
    assert len(leases.keeper) == 0


async def test_a_lost_lease_is_noticed_and_its_holder_told(client, store) -> None:
    queue = await enqueue_run(client, store_rows(store, "one", rows_of("a", "b"), TINY))
    leases = Leases(client, store)
    first, second = await leases.fetch(2)
    told = []
    first.held.on_lost = lambda: told.append("first")
    second.held.on_lost = lambda: told.append("second")
    stolen = Finished(first.leased.item, Token("other"), Verdict.OK, b"p", 1, 1)
    await queue.complete(WorkerName("w2"), [stolen], request=new_nonce())
    await leases.keeper.renew()
    assert told == ["first"]
    assert leases.keeper.all() == [second.held]


async def expire_all(client, run: str) -> None:
    """End the leases of a run now, and reap: what an outage longer than a lease does."""
    info = await Runs(client, QueueLimits()).get(RunName(run))
    short = PromptQueue(client, info.run, info.epoch, QueueLimits(lease_seconds=0.001))
    held = {int(n): held.split()[0] for n, held in (await holders(client, run)).items()}
    assert not await short.extend(WORKER, [(n, token.decode()) for n, token in held.items()])
    reaped = 0
    while reaped < len(held):
        reaped += (await short.reap()).expired


async def holders(client, run: str) -> dict[bytes, bytes]:
    return await client.hgetall(RunKeys(RunName(run)).holder)


@pytest.mark.row("C7")
async def test_own_items_that_come_back_by_a_lease_are_not_begun_again(client, store) -> None:
    """After an outage the lease call may be quicker than the renewal."""
    await enqueue_run(client, store_rows(store, "one", rows_of("a", "b", "c"), TINY))
    leases = Leases(client, store)
    works = await leases.fetch(3)
    lost: list[int] = []
    for work in works:
        work.held.on_lost = lambda n=work.leased.item: lost.append(n)
    leases.outbox.finish(works[2].held, finished(works[2]))  # not delivered yet
    await expire_all(client, "one")
    old = [work.leased.token for work in works]
    assert await leases.fetch(3) == []
    assert [work.leased.token for work in works] != old
    await leases.keeper.renew()
    assert lost == []
    for work in works[:2]:
        leases.outbox.finish(work.held, finished(work))
    async with delivering(leases.outbox):
        await leases.outbox.drained()
    seen = await counts(client, "one")
    assert (seen.generated, seen.leased, seen.queued, seen.wasted_tokens) == (3, 0, 0, 0)
    assert len(leases.keeper) == 0


async def test_a_renewal_that_crossed_a_lease_call_loses_nothing(client, store) -> None:
    await enqueue_run(client, store_rows(store, "one", rows_of("a"), TINY))
    leases = Leases(client, store)
    (work,) = await leases.fetch(1)
    lost: list[bool] = []
    work.held.on_lost = lambda: lost.append(True)
    await expire_all(client, "one")
    extend = work.held.queue.extend

    async def late(worker, pairs):
        assert await leases.fetch(1) == []  # taken while the renewal is on its way
        return await extend(worker, pairs)

    work.held.queue.extend = late
    await leases.keeper.renew()
    assert not lost
    assert (await counts(client, "one")).leased == 1


@pytest.mark.row("C9")
async def test_a_lease_call_that_was_executed_unseen_costs_no_request(client, store) -> None:
    """Its answer is lost; the renewal meets its tokens, and must not take them for another's."""
    await enqueue_run(client, store_rows(store, "one", rows_of("a"), TINY))
    leases = Leases(client, store)
    (work,) = await leases.fetch(1)
    lost: list[bool] = []
    work.held.on_lost = lambda: lost.append(True)
    await expire_all(client, "one")
    lease = work.held.queue.lease

    async def unseen(worker, n, *, request):
        await lease(worker, n, request=request)
        raise QueueError("the answer is lost")

    work.held.queue.lease = unseen
    with pytest.raises(QueueError):
        await leases.fetch(1)
    await leases.keeper.renew()
    assert not lost
    work.held.queue.lease = lease
    assert await leases.fetch(1) == []
    await leases.keeper.renew()
    assert not lost
    assert leases.keeper.all() == [work.held]


async def test_results_outlive_the_loss_of_redis_and_are_offered_under_the_new_epoch(
    client, store
) -> None:
    manifest = store_rows(store, "one", rows_of(*"abc"), TINY)
    await enqueue_run(client, manifest)
    leases = Leases(client, store)
    works = await leases.fetch(3)
    await client.flushall()
    async with delivering(leases.outbox):
        for work in works[:2]:
            leases.outbox.finish(work.held, finished(work))
        leases.outbox.release(works[2].held)
        await eventually(lambda: leases.outbox.tally.dropped == 1)  # the release: load brings it
        await leases.keeper.renew()
        assert not any(work.held.lost for work in works)
        assert len(leases.outbox) == 2
        await enqueue_run(client, manifest)
        await leases.catalogue.refresh(FACTS)
        await leases.outbox.drained()
    seen = await counts(client, "one")
    assert (seen.generated, seen.queued) == (2, 1)


async def test_results_of_other_rows_under_the_same_name_are_never_offered(client, store) -> None:
    await enqueue_run(client, store_rows(store, "one", rows_of("a"), TINY))
    leases = Leases(client, store)
    (work,) = await leases.fetch(1)
    await client.flushall()
    await enqueue_run(client, store_rows(store, "one", rows_of("b"), TINY))
    await leases.catalogue.refresh(FACTS)
    async with delivering(leases.outbox):
        leases.outbox.finish(work.held, finished(work))
        await eventually(lambda: any(batch.refused_by for batch in leases.outbox._batches))
    assert (await counts(client, "one")).generated == 0


async def test_a_lease_call_whose_answer_was_lost_is_repeated_not_doubled(client, store) -> None:
    await enqueue_run(client, store_rows(store, "one", rows_of(*"abcd"), TINY))
    leases = Leases(client, store)
    await leases.catalogue.refresh(FACTS)
    queue = leases.catalogue.active[0].queue
    real = queue.lease

    async def answer_lost(*args, **kwargs):
        queue.lease = real
        await real(*args, **kwargs)
        raise QueueError("the answer was lost")

    queue.lease = answer_lost
    with pytest.raises(QueueError):
        await leases.fetcher.fetch(2)
    works = await leases.fetcher.fetch(4)
    assert [w.leased.item for w in works] == [0, 1]
    assert (await counts(client, "one")).leased == 2


async def test_a_hand_over_whose_answer_was_lost_is_repeated_not_doubled(client, store) -> None:
    await enqueue_run(client, store_rows(store, "one", rows_of(*"abcd"), TINY))
    leases = Leases(client, store)
    works = await leases.fetch(4)
    queue = works[0].held.queue
    real, requests = queue.complete, []

    async def answer_lost(worker, batch, *, request):
        requests.append(request)
        await real(worker, batch, request=request)
        queue.complete = counting
        raise QueueError("the answer was lost")

    async def counting(worker, batch, *, request):
        requests.append(request)
        return await real(worker, batch, request=request)

    queue.complete = answer_lost
    async with delivering(leases.outbox):
        for work in works:
            leases.outbox.finish(work.held, finished(work))
        await leases.outbox.drained()
    assert len(requests) == 2
    assert requests[0] == requests[1]
    tally = leases.outbox.tally
    assert (tally.succeeded, tally.duplicates) == (4, 0)
    assert (await counts(client, "one")).generated == 4
