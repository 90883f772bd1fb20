"""The server carries a call out and its answer is lost: the repeated call does no harm.

Every script has a case here; one without fails the suite. What is compared is a run in which the
call was made once with one in which it was made, its answer lost, and made again.
"""

from __future__ import annotations

import dataclasses

import pytest

from common.errors import QueueError
from common.ids import Item, Token, new_epoch, new_nonce
from common.keys import RunKeys
from common.queue.failures import FailureInfo
from common.queue.prompts import FailOutcome, Outcome, PromptQueue
from common.queue.scripts import ANY_EPOCH, Scripts, script, script_names
from common.records import Failure, Finished, Verdict
from tests.support.proxy import running_proxy
from tests.support.queues import ONE, RUN, QueueBench, let_time_pass, manifest, places

pytestmark = pytest.mark.row("C9")
KEYS = RunKeys(RUN)
UNSTEADY = {"closing", "epoch", "at", "oldest_wait", "since_lease", "since_result", "since_commit"}
UNSTEADY |= {"gpu_seconds"}  # by the clock: from one renewal to the next


def pairs(leased):
    return [(one.item, one.token) for one in leased]


async def create(bench):
    return lambda: bench.runs.create(manifest(20))


async def enqueue(bench):
    info = await bench.runs.create(manifest(20))
    queue = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    return lambda: queue.enqueue(0)


async def enqueue_missing(bench):
    await bench.load()
    for n in (3, 4, 5):  # as `rq empty` does
        bench.sync.lrem(KEYS.queue, 1, f"{RUN}-{n}")
        bench.sync.delete(f"{KEYS.job_prefix}{n}")
    return lambda: bench.queue.enqueue_missing([Item(n) for n in range(20)])


async def restore(bench):
    info = await bench.runs.create(manifest(20))
    return lambda: bench.runs.restore(RUN, info.epoch, committed=b"\xa0\x01")


async def rebury(bench):
    info = await bench.runs.create(manifest(20))
    queue = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    letters = [FailureInfo(Item(n), "empty", "no text", "gpu0", 1000.5) for n in (3, 4)]
    return lambda: queue.bury_again(letters)


async def renew(bench):
    await bench.load()
    new = new_epoch()
    return lambda: bench.queue.renew(new)


async def lease(bench):
    await bench.load()
    request = new_nonce()
    return lambda: bench.queue.lease(ONE, 5, request=request)


async def extend(bench):
    await bench.load()
    held = pairs(await bench.lease(3))
    return lambda: bench.queue.extend(ONE, [*held, (Item(9), Token("not ours"))])


async def complete(bench):
    await bench.load()
    batch = [
        Finished(one.item, one.token, Verdict.OK, b"text", 1, 7) for one in await bench.lease(3)
    ]
    request = new_nonce()
    return lambda: bench.queue.complete(ONE, batch, request=request)


async def progress(bench):
    await bench.load()
    (one,) = await bench.lease(1)
    return lambda: bench.queue.save_turns(ONE, one.item, one.token, b"turns")


async def release(bench):
    await bench.load()
    held = pairs(await bench.lease(3))
    return lambda: bench.queue.release(ONE, held)


async def fail(bench):
    await bench.load()
    one, two, three = await bench.lease(3)
    failures = [
        Failure(one.item, one.token, Verdict.EMPTY, "why", charged=True, completion_tokens=5),
        Failure(two.item, two.token, Verdict.TOO_LONG, "why", charged=True, final=True),
        Failure(three.item, three.token, Verdict.TIMEOUT, "why", charged=False),
    ]
    return lambda: bench.queue.fail(ONE, failures)


async def reap(bench):
    await bench.load()
    await bench.lease(3)
    let_time_pass(bench.sync, RUN, 100)
    return bench.queue.reap


async def sweep(bench):
    await bench.load()
    taken = bench.sync.lmove(KEYS.queue, KEYS.intermediate, "LEFT", "RIGHT")
    await bench.queue.reap()
    bench.sync.hset(KEYS.seen, taken, 1)  # a stock worker took it long ago, and died
    return bench.queue.reap


async def adopt(bench):
    await bench.load()
    bench.sync.lpop(KEYS.queue)
    bench.sync.hset(f"{KEYS.job_prefix}0", "status", "started")  # as RQ does
    scripts = Scripts(bench.client, RUN, ANY_EPOCH)
    return lambda: scripts.call("adopt", "rq-stock", "t" * 18, 60_000, f"{RUN}-0")


async def commit(bench):
    await bench.load()
    await bench.complete(await bench.lease(3))
    entries = await bench.stream.read("sink", 2, block_ms=None)
    return lambda: bench.stream.commit(entries)


async def reject(bench):
    await bench.load()
    await bench.complete(await bench.lease(2))
    (entry,) = await bench.stream.read("sink", 1, block_ms=None)
    return lambda: bench.stream.reject(entry, Verdict.MALFORMED, "cannot be stored")


async def requeue(bench):
    await bench.load()
    await bench.fail(await bench.lease(3), final=True)
    return lambda: bench.runs.requeue(RUN)


async def uncommit(bench):
    info = await bench.load(items=3)
    await bench.complete(await bench.lease(3))
    await bench.commit_all()
    return lambda: bench.runs.uncommit(RUN, info.epoch, [Item(1), Item(2)])


async def recount(bench):
    info = await bench.load(items=3)
    await bench.runs.restore(RUN, info.epoch, committed=b"\xc0")
    return lambda: bench.queue.recount({"ok": 1, "truncated": 1})


async def close(bench):
    await bench.load(items=3)
    await bench.complete(await bench.lease(3))
    await bench.commit_all()
    return lambda: bench.runs.close(RUN)


async def cancel(bench):
    await bench.load()
    await bench.complete(await bench.lease(2))
    return lambda: bench.runs.cancel(RUN)


async def state(bench):
    await bench.load()
    return lambda: bench.runs.pause(RUN)


async def priority(bench):
    await bench.load()
    return lambda: bench.runs.set_priority(RUN, 7)


async def trace(bench):
    await bench.load()
    return lambda: bench.runs.trace(RUN, Item(3))


async def sample(bench):
    await bench.load()
    return lambda: bench.runs.sample(RUN)


CASES = {
    case.__name__: case
    for case in (
        *(create, enqueue, enqueue_missing, restore, lease, extend, complete, release, fail),
        *(reap, sweep, adopt, commit, reject, requeue, close, cancel, state, sample),
        *(uncommit, progress, priority, trace, rebury, renew, recount),
    )
}
ANSWERED_AGAIN = {  # the caller needs the first answer, and gets it
    "extend": [Item(9)],
    "complete": [Outcome.FIRST] * 3,
    "release": 3,
    "fail": [FailOutcome.RETRY, FailOutcome.DEAD, FailOutcome.RELEASED],
    "close": True,
    "recount": True,
    "progress": True,
}


def test_every_script_has_a_case():
    assert sorted(CASES) == script_names()


@pytest.fixture
async def bench(redis_server):
    with running_proxy(redis_server.ports[0]) as proxy:
        bench = QueueBench(proxy.url(redis_server.url))
        bench.proxy = proxy
        yield bench
        bench.sync.close()
        await bench.client.aclose()


async def books(bench):
    counts = dataclasses.asdict(await bench.counts())
    where = places(bench.sync, RUN)
    return {name: value for name, value in counts.items() if name not in UNSTEADY}, where


@pytest.mark.parametrize("name", script_names())
async def test_a_lost_answer_leaves_the_books_as_one_call_does(bench, name):
    await (await CASES[name](bench))()
    expected = await books(bench)
    bench.sync.flushall()
    call = await CASES[name](bench)
    await bench.client.script_load(script(name).text)
    bench.proxy.lose_answers(script(name).sha.encode())
    with pytest.raises(QueueError):
        await call()
    assert bench.proxy.lost == 1
    answer = await call()
    assert await books(bench) == expected
    if name in ANSWERED_AGAIN:
        assert answer == ANSWERED_AGAIN[name]


async def test_a_lost_lease_is_handed_out_again_with_its_tokens(bench):
    call = await lease(bench)
    await bench.client.script_load(script("lease").text)
    bench.proxy.lose_answers(script("lease").sha.encode())
    with pytest.raises(QueueError):
        await call()
    held = pairs(await call())
    assert await bench.queue.extend(ONE, held) == []


async def test_a_create_whose_answer_was_lost_keeps_its_first_epoch(bench):
    call = await create(bench)
    await bench.client.script_load(script("create").text)
    bench.proxy.lose_answers(script("create").sha.encode())
    with pytest.raises(QueueError):
        await call()
    stands = bench.sync.hget(KEYS.meta, "epoch").decode()
    assert (await call()).epoch == stands
