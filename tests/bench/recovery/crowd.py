"""Hundreds of consumers die at once: the queue alone, with the calls that consumers make."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.ids import RunName, WorkerName, new_nonce
from common.queue.prompts import CHUNK_ITEMS, PromptQueue, QueueLimits
from common.queue.run_state import Runs
from consumer.daemon import REAP_SECONDS
from consumer.leases.fetcher import MOST_AT_ONCE
from tests.support import servers
from tests.support.queues import async_client, manifest

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = RunName("crowd")
SURVIVORS = 4
LEASE_SECONDS = 0.5  # between a consumer's looks at a queue that had nothing


@dataclass
class Crowd:
    items: int
    first_seconds: float = 0.0  # from the deaths until the first item was leased again
    seconds: float = 0.0  # until the last one was


async def crowd_dies(consumers: int, each: int, lease_seconds: float) -> Crowd:
    limits = QueueLimits(lease_seconds=lease_seconds)
    crowd = Crowd(consumers * each)
    with servers.redis_server() as server:
        async with async_client(server.url) as client:
            info = await Runs(client, limits).create(manifest(crowd.items, run=RUN))
            queue = PromptQueue(client, RUN, info.epoch, limits)
            for chunk in range(-(-crowd.items // CHUNK_ITEMS)):
                await queue.enqueue(chunk)
            await Runs(client, limits).open(RUN)
            await queue.reap()  # a reaper has been there since long
            leased = 0
            for n in range(consumers):
                name = WorkerName(f"dead-{n}")
                leased += len(await queue.lease(name, each, request=new_nonce()))
            assert leased == crowd.items
            await _until_leased_again(queue, crowd)
    return crowd


async def _until_leased_again(queue: PromptQueue, crowd: Crowd) -> None:
    died = time.monotonic()
    again = 0

    async def survive(n: int) -> None:
        nonlocal again
        name = WorkerName(f"alive-{n}")
        reaping = asyncio.create_task(_for_ever(lambda: _reap(queue), REAP_SECONDS))
        while again < crowd.items:
            got = await queue.lease(name, MOST_AT_ONCE, request=new_nonce())
            if got and not again:
                crowd.first_seconds = time.monotonic() - died
            again += len(got)
            pause = 0 if got else LEASE_SECONDS
            await asyncio.sleep(pause)  # poll: for items, as a consumer does
        reaping.cancel()

    await asyncio.gather(*(survive(n) for n in range(SURVIVORS)))
    crowd.seconds = time.monotonic() - died


async def _reap(queue: PromptQueue) -> None:
    while (await queue.reap()).more:
        pass


async def _for_ever(call: Callable[[], object], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)  # lasts: the rhythm of a service
        await call()
