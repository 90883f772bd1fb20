"""Leases of several runs at a time: what one of them does costs nothing of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis.asyncio

from common.errors import QueueError
from common.ids import Item, RunName, Token, WorkerName, new_nonce
from common.records import Finished, RunSettings, Verdict
from tests.support.consumers import enqueue_run, rows_of, store_rows
from tests.support.leases import FACTS, Leases

if TYPE_CHECKING:
    from common.queue.prompts import PromptQueue

TINY = RunSettings(model="tiny", model_fingerprint="")


@pytest.fixture
async def client(redis_url):
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


async def two_runs(client, store) -> tuple[Leases, PromptQueue]:
    """Return the lease side of a consumer of two runs, and the queue of the second."""
    for name, priority in (("first", 5), ("second", 0)):
        manifest = store_rows(store, name, rows_of("a", "b"), TINY)
        await enqueue_run(client, manifest, priority=priority)
    leases = Leases(client, store)
    await leases.catalogue.refresh(FACTS)
    return leases, leases.catalogue.active[1].queue


@pytest.mark.parametrize("executed", [False, True])
async def test_what_one_run_gave_is_worked_on_where_the_lease_call_of_the_next_fails(
    client, store, monkeypatch, executed
) -> None:
    leases, second = await two_runs(client, store)
    lease = second.lease

    async def away(worker, n, *, request):
        if executed:
            await lease(worker, n, request=request)
        raise QueueError("no answer")

    monkeypatch.setattr(second, "lease", away)
    works = await leases.fetcher.fetch(4)
    assert [work.held.run for work in works] == ["first", "first"]
    assert leases.keeper.all() == [work.held for work in works]  # none is renewed but not begun
    with pytest.raises(QueueError):
        await leases.fetcher.fetch(2)  # now there is nothing else to do
    monkeypatch.setattr(second, "lease", lease)
    assert [work.held.run for work in await leases.fetcher.fetch(2)] == ["second", "second"]
    assert (await leases.runs.sample(RunName("second"))).leased == 2


async def test_what_is_lost_while_the_next_run_is_asked_is_not_begun(
    client, store, monkeypatch
) -> None:
    leases, second = await two_runs(client, store)
    lease = second.lease

    async def late(worker, n, *, request):
        first = leases.catalogue.active[0].queue
        stolen = Finished(Item(0), Token("other"), Verdict.OK, b"p", 1, 1)
        await first.complete(WorkerName("w2"), [stolen], request=new_nonce())
        await leases.keeper.renew()
        return await lease(worker, n, request=request)

    monkeypatch.setattr(second, "lease", late)
    works = await leases.fetcher.fetch(3)
    assert [(work.held.run, work.leased.item) for work in works] == [("first", 1), ("second", 0)]
