"""Other applications, and other RQ queues, in the same database: not touched, not hindered."""

from __future__ import annotations

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from common.ids import new_nonce
from tests.support.queues import ONE, RUN, QueueBench

NEAR = ("genq", "genqx:meta", "rq", "rqx:job", "celery", f"{RUN}", f"x:genq:meta:{RUN}")


def fill(client):
    for name in NEAR:
        client.set(name, "theirs")
    client.hset("session:1", mapping={"user": "somebody"})
    client.zadd("board", {"a": 1, "b": 2})
    client.xadd("events", {"kind": "theirs"})
    client.rpush("celery:queue", "task")
    other = Queue(f"{RUN}x", connection=client, serializer=JSONSerializer)
    return other.enqueue("math.sqrt", 4)


def dumps(client, names):
    return {name: client.dump(name) for name in names}


@pytest.mark.row("C13")
async def test_a_whole_run_leaves_the_keys_of_others_as_they_were(redis_url):
    bench = QueueBench(redis_url)
    fill(bench.sync)
    # RQ's list of queues is everybody's.
    theirs = {key for key in bench.sync.scan_iter() if key != b"rq:queues"}
    before = dumps(bench.sync, theirs)
    await bench.load(1100)
    await bench.complete(await bench.lease(5))
    await bench.fail(await bench.lease(2))
    await bench.fail(await bench.lease(2), final=True)
    await bench.queue.release(ONE, [(one.item, one.token) for one in await bench.lease(2)])
    await bench.lease(3)
    await bench.expire()
    await bench.commit_all()
    await bench.runs.requeue(RUN)
    await bench.queue.enqueue_missing([0, 1])
    while leased := await bench.queue.lease(ONE, 32, request=new_nonce()):
        await bench.complete(leased)
    await bench.commit_all()
    await bench.runs.cancel(RUN)
    assert dumps(bench.sync, theirs) == before
    ours = set(bench.sync.scan_iter()) - theirs
    assert all(key.startswith((b"genq:", b"rq:")) for key in ours)
    assert bench.sync.smembers("rq:queues") == {
        f"rq:queue:{RUN}x".encode(),
        f"rq:queue:{RUN}".encode(),
    }
    bench.sync.close()
    await bench.client.aclose()
