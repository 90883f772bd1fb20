"""What each call of the queue promises, one promise a test, on a real server."""

from __future__ import annotations

import random
import re
import string
from importlib.resources import files

import pytest
import redis
from rq.job import Job
from rq.serializers import JSONSerializer

from common.audit import check_counts
from common.errors import ConflictError, EpochError, QueueError, RunClosedError
from common.ids import Epoch, Item, Token, WorkerName, job_id, new_nonce
from common.keys import RunKeys
from common.queue.failures import RECORD_BYTES, decode_reason, encode_reason
from common.queue.prompts import FailOutcome, Outcome, PromptQueue, QueueLimits
from common.queue.results import ResultStream
from common.queue.run_state import Runs
from common.queue.scripts import script_names
from common.records import Failure, Finished, StreamEntry, Verdict
from tests.support.queues import RUN, async_client, let_time_pass, manifest, places, set_bits

KEYS = RunKeys(RUN)
ONE, TWO = WorkerName("one"), WorkerName("two")


class Bench:
    """A run, with the hands of two consumers and of a sink on it."""

    def __init__(self, url, limits=None):
        self.sync = redis.Redis.from_url(url, protocol=2)
        self.client = async_client(url)
        self.limits = limits or QueueLimits()
        self.runs = Runs(self.client, self.limits)

    async def load(self, items=20, *, limits=None, attempts=3):
        limits = limits or self.limits
        info = await self.runs.create(manifest(items, attempts=attempts))
        self.queue = PromptQueue(self.client, RUN, info.epoch, limits)
        self.stream = ResultStream(self.client, RUN, info.epoch, limits)
        for chunk in range(-(-items // 1000)):
            await self.queue.enqueue(chunk)
        await self.runs.open(RUN)
        await self.calm()
        return info

    async def calm(self):
        """Let the time go by in which leases do not expire after a start."""
        await self.queue.reap()
        let_time_pass(self.sync, RUN, self.limits.lease_seconds + 1)

    async def lease(self, n=1, worker=ONE):
        return await self.queue.lease(worker, n, request=new_nonce())

    async def complete(self, leased, worker=ONE):
        batch = [Finished(one.item, one.token, Verdict.OK, b"text", 1, 1) for one in leased]
        return await self.queue.complete(worker, batch, request=new_nonce())

    async def fail(self, leased, verdict=Verdict.EMPTY, worker=ONE, *, charged=True, **more):
        return await self.queue.fail(
            worker,
            [Failure(one.item, one.token, verdict, "why", charged, **more) for one in leased],
        )

    async def expire(self):
        let_time_pass(self.sync, RUN, self.limits.lease_seconds + 1)
        return await self.queue.reap()

    async def commit_all(self):
        return await self.stream.commit(await self.stream.read("sink", 1000, block_ms=None))

    async def counts(self):
        counts = await self.runs.sample(RUN)
        assert check_counts(counts) == []
        return counts


@pytest.fixture
async def bench(redis_url):
    bench = Bench(redis_url)
    yield bench
    bench.sync.close()
    await bench.client.aclose()


# Lua files


@pytest.mark.parametrize("name", script_names())
def test_each_script_says_what_it_does_in_one_form(name):
    text = files("common.queue").joinpath(f"lua/{name}.lua").read_text()
    shebang, *lines = text.splitlines()
    assert re.fullmatch(r"#!lua( flags=(allow-oom|no-writes))?", shebang)
    header = []
    for line in lines:
        if not line.startswith("--"):
            break
        header.append(line)
    named = [line.split()[1] for line in header if re.match(r"-- [A-Z][A-Za-z]+  ", line)]
    assert named == ["KEYS", "ARGV", "Returns", "Idempotent"]
    assert re.match(r"-- [A-Z][a-z-]+ .+", header[0])


def test_no_lua_file_outgrows_one_screen_and_all_stay_within_the_line():
    for path in files("common.queue").joinpath("lua").iterdir():
        lines = path.read_text().splitlines()
        assert len(lines) <= 80, path.name
        assert all(len(line) <= 100 for line in lines), path.name


# Producers


async def test_a_chunk_is_enqueued_once_however_often_it_is_sent(bench):
    await bench.load(1500)
    assert await bench.queue.enqueue(0) == 0
    assert await bench.queue.enqueue(1) == 0
    with pytest.raises(QueueError):
        await bench.queue.enqueue(2)
    assert bench.sync.llen(KEYS.queue) == 1500
    assert (await bench.counts()).loaded == 1500


async def test_a_job_has_three_fields_and_no_long_one(bench):
    await bench.load()
    fields = bench.sync.hgetall(f"{KEYS.job_prefix}3")
    assert set(fields) == {b"data", b"origin", b"status"}
    assert max(len(value) for value in fields.values()) <= 64
    job = Job.fetch(job_id(RUN, 3), connection=bench.sync, serializer=JSONSerializer)
    assert job.func.__module__ == "common.queue"


async def test_the_same_run_is_returned_as_it_is_and_another_is_refused(bench):
    info = await bench.load()
    again = await bench.runs.create(manifest(20), priority=9)
    assert (again.epoch, again.state, again.priority) == (info.epoch, "open", 0)
    with pytest.raises(ConflictError):
        await bench.runs.create(manifest(20, fingerprint="e" * 64))


async def test_what_was_committed_before_a_total_loss_is_not_enqueued(bench):
    info = await bench.runs.create(manifest(1010))
    await bench.runs.restore(RUN, info.epoch, committed=bytes([0b10100000]) + bytes(125) + b"\x40")
    bench.queue = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    assert await bench.queue.enqueue(0) == 998
    assert await bench.queue.enqueue(1) == 9
    counts = await bench.counts()
    assert (counts.loaded, counts.committed) == (1010, 3)
    # The same again, and one more, while the run goes on: as a sink's commit does it.
    await bench.runs.restore(RUN, info.epoch, committed=bytes([0b11100000]))
    counts = await bench.counts()
    assert (counts.committed, counts.queued) == (4, 1006)


async def test_a_resumed_run_is_loading_until_all_of_it_is_loaded(bench):
    info = await bench.runs.create(manifest(1500))
    queue = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    await queue.enqueue(0)
    await bench.runs.pause(RUN)
    assert await queue.lease(ONE, 1, request=new_nonce()) == []
    await bench.runs.resume(RUN)
    assert (await bench.runs.get(RUN)).state == "loading"
    assert len(await queue.lease(ONE, 1, request=new_nonce())) == 1
    await queue.enqueue(1)
    await bench.runs.open(RUN)
    assert (await bench.runs.get(RUN)).state == "open"


# Leases


async def test_a_lost_answer_to_lease_is_given_again(bench):
    await bench.load()
    request = new_nonce()
    first = await bench.queue.lease(ONE, 5, request=request)
    assert await bench.queue.lease(ONE, 5, request=request) == first
    assert (await bench.counts()).leased == 5


async def test_nothing_is_leased_over_the_high_water_marks(bench):
    limits = QueueLimits(stream_entries=2)
    await bench.load(limits=limits)
    await bench.complete(await bench.lease(2))
    assert await bench.lease() == []
    assert await bench.commit_all() == 2
    assert len(await bench.lease()) == 1


async def test_the_bytes_of_the_stream_bound_it_too(bench):
    await bench.load(limits=QueueLimits(stream_bytes=8))
    await bench.complete(await bench.lease(2))
    assert (await bench.counts()).stream_bytes == 8
    assert await bench.lease() == []
    await bench.commit_all()
    assert (await bench.counts()).stream_bytes == 0
    assert len(await bench.lease()) == 1


async def test_an_expired_lease_goes_back_to_the_head_with_a_delivery_counted(bench):
    await bench.load()
    held = await bench.lease(3)
    assert (await bench.expire()).expired == 3
    again = await bench.lease(3, TWO)
    assert [(one.item, one.attempt, one.delivery) for one in again] == [
        (one.item, 1, 2) for one in held
    ]
    assert await bench.queue.extend(ONE, [(one.item, one.token) for one in held]) == [0, 1, 2]


async def test_extend_takes_up_an_expired_lease_that_nobody_has_had_since(bench):
    await bench.load()
    (held,) = await bench.lease()
    await bench.expire()
    assert await bench.queue.extend(ONE, [(held.item, held.token)]) == []
    counts = await bench.counts()
    assert (counts.leased, counts.queued) == (1, 19)
    await bench.expire()
    assert (await bench.lease())[0].delivery == 2


async def test_extend_does_not_take_up_what_its_worker_gave_back(bench):
    await bench.load()
    held = await bench.lease(2)
    await bench.queue.release(ONE, [(held[0].item, held[0].token)])
    await bench.fail(held[1:])
    assert await bench.queue.extend(ONE, [(one.item, one.token) for one in held]) == [0, 1]


async def test_leases_live_for_a_while_after_a_start_of_redis(bench):
    await bench.load()
    await bench.lease(3)
    bench.sync.hset("genq:started", "run_id", "of the process before")
    bench.sync.zadd(KEYS.lease, {0: 1, 1: 1, 2: 1})
    assert (await bench.queue.reap()).expired == 0
    assert (await bench.expire()).expired == 3


async def test_one_reaper_at_a_time(bench):
    info = await bench.load()
    await bench.lease(3)
    let_time_pass(bench.sync, RUN, 100)
    other = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    assert (await bench.queue.reap()).expired == 3
    await bench.lease(3)
    bench.sync.zadd(KEYS.lease, {0: 1, 1: 1, 2: 1})
    assert (await other.reap()).expired == 0
    assert (await bench.queue.reap()).expired == 3


async def test_the_reaper_moves_at_most_a_hundred_a_call(bench):
    await bench.load(250)
    await bench.lease(250)
    let_time_pass(bench.sync, RUN, 100)
    reaped = [await bench.queue.reap() for _ in range(3)]
    assert [(one.expired, one.more) for one in reaped] == [(100, True), (100, True), (50, False)]


async def test_release_keeps_the_order_and_charges_nothing(bench):
    await bench.load()
    held = await bench.lease(4)
    pairs = [(one.item, one.token) for one in held]
    assert await bench.queue.release(ONE, pairs) == 4
    assert await bench.queue.release(ONE, pairs) == 4
    again = await bench.lease(4)
    assert [(one.item, one.delivery) for one in again] == [(0, 1), (1, 1), (2, 1), (3, 1)]


async def test_foreign_ids_are_kept_aside(bench):
    await bench.load(items=2)
    bench.sync.lpush(KEYS.queue, "somebody-elses", f"{RUN}-2", f"{RUN}-01")
    assert [one.item for one in await bench.lease(9)] == [0, 1]
    assert bench.sync.llen(KEYS.foreign) == 3
    assert (await bench.counts()).foreign == 3


# Results


async def test_the_first_result_wins_whoever_brings_it(bench):
    await bench.load()
    old = await bench.lease()
    await bench.expire()
    new = await bench.lease(1, TWO)
    assert await bench.complete(old) == [Outcome.FIRST]
    assert await bench.queue.extend(TWO, [(new[0].item, new[0].token)]) == [0]
    assert await bench.complete(new, TWO) == [Outcome.DUPLICATE]
    counts = await bench.counts()
    assert (counts.generated, counts.leased, counts.wasted_tokens) == (1, 0, 1)


async def test_a_late_result_is_taken_from_wherever_the_item_is(bench):
    await bench.load(items=4, attempts=2)
    waiting, dead, queued, deep = held = await bench.lease(4)
    await bench.expire()
    await bench.fail((await bench.lease(1, TWO)), worker=TWO)
    await bench.fail((await bench.lease(1, TWO)), worker=TWO, final=True)
    assert {item: where[0] for item, where in places(bench.sync, RUN).items()} == {
        0: "waiting",
        1: "dead",
        2: "queued",
        3: "queued",
    }
    assert await bench.complete(held) == [Outcome.FIRST] * 4
    assert {waiting.item, dead.item, queued.item, deep.item} == {0, 1, 2, 3}
    counts = await bench.counts()
    assert (counts.generated, counts.ghosts) == (4, 0)
    assert await bench.runs.failures_by_class(RUN) == {}


async def test_an_id_too_deep_in_the_queue_becomes_a_ghost_until_lease_meets_it(bench):
    await bench.load(2500)
    held = await bench.lease()
    await bench.fail(held)
    let_time_pass(bench.sync, RUN, 400)
    assert (await bench.queue.reap()).promoted == 1
    assert await bench.complete(held) == [Outcome.FIRST]
    counts = await bench.counts()
    assert (counts.ghosts, counts.queued, bench.sync.llen(KEYS.queue)) == (1, 2499, 2500)
    assert bench.sync.ttl(f"{KEYS.job_prefix}0") == -1  # RQ's tools delete ids without a hash
    leased = [one.item for _ in range(3) for one in await bench.lease(1000)]
    assert sorted(leased) == list(range(1, 2500))
    assert (await bench.counts()).ghosts == 0
    assert not bench.sync.exists(f"{KEYS.job_prefix}0")


async def test_a_commit_withdraws_the_item_from_wherever_it_is(bench):
    await bench.load()
    held = await bench.lease(2)
    await bench.complete(held[:1])
    entries = await bench.stream.read("sink", 9, block_ms=None)
    # Redis went back to a moment before the result: the sink has it all the same.
    bench.sync.delete(KEYS.stream)
    bench.sync.setbit(KEYS.done, 0, 0)
    bench.sync.hset(KEYS.counts, "stream_bytes", 0)
    bench.sync.lpush(KEYS.queue, job_id(RUN, 0))
    assert await bench.stream.commit(entries) == 1
    assert await bench.stream.commit(entries) == 0
    counts = await bench.counts()
    assert (counts.committed, counts.queued, counts.leased) == (1, 18, 1)


async def test_a_commit_takes_no_entry_that_is_another_items(bench):
    await bench.load()
    await bench.complete(await bench.lease(2))
    first, second = await bench.stream.read("sink", 9, block_ms=None)
    swapped = type(first)(second.entry_id, first.item, first.payload)
    assert await bench.stream.commit([swapped]) == 1
    assert [entry.item for entry in await bench.stream.pending("sink")] == [0, 1]
    assert await bench.stream.commit([first, second]) == 1


async def test_results_of_a_dead_sink_are_claimed(bench):
    await bench.load()
    await bench.complete(await bench.lease(3))
    await bench.stream.read("dead", 2, block_ms=None)
    assert await bench.stream.claim("alive", idle_seconds=60, count=9) == []
    claimed = await bench.stream.claim("alive", idle_seconds=0, count=9)
    assert [entry.item for entry in claimed] == [0, 1]
    assert await bench.stream.pending("dead") == []
    assert await bench.stream.pending("alive") == claimed


async def test_a_missing_group_is_made_and_loses_nothing(bench):
    await bench.load()
    await bench.complete(await bench.lease(3))
    bench.sync.xgroup_destroy(KEYS.stream, "sink")
    assert len(await bench.stream.read("sink", 9, block_ms=None)) == 3


async def test_a_rejected_result_is_a_dead_letter_with_its_reason(bench):
    await bench.load()
    await bench.complete(await bench.lease())
    (entry,) = await bench.stream.read("sink", 9, block_ms=None)
    await bench.stream.reject(entry, Verdict.MALFORMED, "no such encoding")
    await bench.stream.reject(entry, Verdict.MALFORMED, "no such encoding")
    counts = await bench.counts()
    assert (counts.dead, counts.generated, counts.verdicts) == (1, 0, {})
    (failure,) = await bench.runs.failures(RUN, limit=9)
    assert (failure.item, failure.verdict, failure.text) == (0, "malformed", "no such encoding")


# Failures


async def test_attempts_are_used_up_one_by_one_and_each_wait_is_longer(bench):
    await bench.load(items=1)
    waits = []
    for attempt in (1, 2):
        (held,) = await bench.lease()
        assert (held.attempt, held.delivery) == (attempt, attempt)
        assert await bench.fail([held]) == [FailOutcome.RETRY]
        due = bench.sync.zscore(KEYS.scheduled, job_id(RUN, 0))
        waits.append(due - bench.sync.time()[0])
        let_time_pass(bench.sync, RUN, 400)
        assert (await bench.queue.reap()).promoted == 1
    assert 1 < waits[0] < 9
    assert 4 < waits[1] < 17
    assert await bench.fail(await bench.lease()) == [FailOutcome.DEAD]
    counts = await bench.counts()
    assert (counts.dead, counts.failures) == (1, {"empty": 3})


async def test_an_old_or_a_foreign_token_fails_nothing(bench):
    await bench.load()
    old = await bench.lease()
    await bench.expire()
    await bench.lease(1, TWO)
    assert await bench.fail(old) == [FailOutcome.STALE]
    assert await bench.queue.release(ONE, [(0, Token("0" * 18))]) == 0
    assert (await bench.counts()).leased == 1


async def test_engine_faults_charge_no_attempt_but_deliveries_are_limited(bench):
    await bench.load(items=1, limits=QueueLimits(max_deliveries=3))
    outcomes = []
    for _ in range(3):
        held = await bench.lease()
        assert held[0].attempt == 1
        outcomes += await bench.fail(held, Verdict.TIMEOUT, charged=False)
    assert outcomes == [FailOutcome.RELEASED, FailOutcome.RELEASED, FailOutcome.DEAD]


async def test_a_busy_engine_counts_no_delivery(bench):
    await bench.load(items=1, limits=QueueLimits(max_deliveries=3))
    for _ in range(6):
        held = await bench.lease()
        assert await bench.fail(held, Verdict.BUSY, charged=False) == [FailOutcome.RELEASED]
    assert (await bench.lease())[0].delivery == 1


async def test_from_the_third_death_on_only_deaths_alone_count(bench):
    await bench.load(items=1)

    async def die(*, alone):
        held = await bench.lease()
        more = {"charged": False, "engine_died": True, "alone": alone}
        return (await bench.fail(held, Verdict.ENGINE_DOWN, **more))[0], held[0].deaths

    assert [await die(alone=False) for _ in range(5)] == [
        (FailOutcome.RELEASED, deaths) for deaths in (0, 1, 2, 3, 3)
    ]
    assert [await die(alone=True) for _ in range(3)] == [
        (FailOutcome.RELEASED, 3),
        (FailOutcome.RELEASED, 4),
        (FailOutcome.DEAD, 5),
    ]


async def test_requeue_gives_chosen_dead_items_a_fresh_budget(bench):
    await bench.load()
    await bench.fail(await bench.lease(2), Verdict.TOO_LONG, final=True)
    await bench.fail(await bench.lease(2), Verdict.EMPTY, final=True)
    assert await bench.runs.failures_by_class(RUN) == {"too_long": 2, "empty": 2}
    assert await bench.runs.requeue(RUN, verdict=Verdict.EMPTY) == 2
    assert await bench.runs.requeue(RUN, items=[0, 7]) == 1
    assert await bench.runs.requeue(RUN) == 1
    assert (await bench.counts()).queued == 20
    assert {one.attempt for one in await bench.lease(20)} == {1}


def test_a_reason_is_cut_to_what_it_may_take():
    noise = "".join(random.Random(1).choices(string.printable, k=5000))
    for text in ("", "short", "é" * 5000, "\ud800 alone", noise):
        record = encode_reason(text)
        assert len(record) <= RECORD_BYTES
        assert decode_reason(record)[:20] == text.encode("utf-8", "replace").decode()[:20]
    assert len(decode_reason(encode_reason("a" * 5000))) == 2000


async def test_ten_thousand_failures_take_less_than_twenty_megabytes(bench):
    await bench.load(10_000)
    noise = random.Random(1)
    before = bench.sync.info("memory")["used_memory"]
    for _ in range(100):
        held = await bench.lease(100)
        await bench.queue.fail(
            ONE,
            [
                Failure(
                    one.item,
                    one.token,
                    Verdict.EMPTY,
                    "".join(noise.choices(string.printable, k=2500)),
                    charged=True,
                    final=True,
                )
                for one in held
            ],
        )
    grown = bench.sync.info("memory")["used_memory"] - before
    print(f"{grown / 1e6:.1f} MB for 10,000 failures")
    assert grown < 20_000_000
    assert (await bench.counts()).dead == 10_000


# Runs as a whole


async def test_an_emptied_redis_is_noticed_by_every_call(bench):
    await bench.load()
    held = await bench.lease()
    bench.sync.flushdb()
    for call in (
        bench.lease(),
        bench.complete(held),
        bench.fail(held),
        bench.queue.release(ONE, [(0, held[0].token)]),
        bench.queue.extend(ONE, [(0, held[0].token)]),
        bench.queue.enqueue(0),
        bench.queue.enqueue_missing([0]),
        bench.queue.reap(),
        bench.stream.read("sink", 1, block_ms=1),
        bench.stream.commit([StreamEntry("1-1", Item(0), b"")]),
        bench.runs.sample(RUN),
    ):
        with pytest.raises(EpochError):
            await call
    assert bench.sync.dbsize() <= 1  # nothing of ours was written


async def test_another_epoch_of_the_run_is_another_run(bench):
    await bench.load()
    stale = PromptQueue(bench.client, RUN, Epoch("0" * 16), bench.limits)
    with pytest.raises(EpochError):
        await stale.lease(ONE, 1, request=new_nonce())


async def test_a_run_closes_only_when_nothing_is_open(bench):
    await bench.load(items=2)
    assert not await bench.runs.close(RUN)
    first, second = await bench.lease(2)
    await bench.complete([first])
    await bench.fail([second], final=True)
    assert not await bench.runs.close(RUN)
    await bench.commit_all()
    assert await bench.runs.close(RUN)
    assert (await bench.counts()).settled
    assert await bench.lease() == []
    for call in (bench.complete([second]), bench.queue.enqueue(0), bench.runs.requeue(RUN)):
        with pytest.raises(RunClosedError):
            await call
    await bench.runs.reopen(RUN)
    assert await bench.runs.requeue(RUN) == 1
    assert [one.item for one in await bench.lease(9)] == [1]


async def test_a_cancelled_run_keeps_what_it_has_and_can_be_loaded_again(bench):
    await bench.load(2500)
    held = await bench.lease(5)
    await bench.complete(held[:2])
    await bench.fail(held[2:3], final=True)
    await bench.fail(held[3:4])
    await bench.runs.cancel(RUN)
    counts = await bench.counts()
    assert (counts.loaded, counts.generated, counts.dead, counts.open) == (3, 2, 1, 2)
    assert await bench.queue.extend(ONE, [(held[4].item, held[4].token)]) == [4]
    with pytest.raises(RunClosedError):
        await bench.complete(held[4:])

    await bench.runs.reopen(RUN)
    await bench.runs.requeue(RUN)
    for chunk in range(3):
        await bench.queue.enqueue(chunk)
    counts = await bench.counts()
    assert (counts.loaded, counts.queued) == (2500, 2498)
    assert sorted(places(bench.sync, RUN)) == list(range(2500))


async def test_a_held_run_says_why_and_goes_on_when_told(bench):
    await bench.load()
    await bench.runs.hold(RUN, "9 of 10 answers are empty")
    info = await bench.runs.get(RUN)
    assert (info.state, info.hold_reason) == ("held", "9 of 10 answers are empty")
    assert await bench.lease() == []
    await bench.runs.resume(RUN)
    info = await bench.runs.get(RUN)
    assert (info.state, info.hold_reason) == ("open", "")
    assert len(await bench.lease()) == 1


async def test_a_sample_writes_nothing(bench):
    await bench.load()
    await bench.complete(await bench.lease(3))
    before = {key: bench.sync.dump(key) for key in bench.sync.scan_iter()}
    await bench.runs.sample(RUN)
    await bench.runs.list()
    await bench.runs.workers()
    await bench.runs.open_items(RUN)
    await bench.runs.failures(RUN, limit=5)
    assert {key: bench.sync.dump(key) for key in bench.sync.scan_iter()} == before


async def test_open_items_sees_every_place(bench):
    await bench.load(2500)
    held = await bench.lease(5)
    await bench.complete(held[:2])
    await bench.fail(held[2:3], final=True)
    await bench.fail(held[3:4])
    await bench.commit_all()
    assert set_bits(await bench.runs.open_items(RUN))[:2500] == list(range(2500))


async def test_a_full_redis_takes_results_and_commits_but_no_prompts(bench):
    info = await bench.runs.create(manifest(2000))
    queue = bench.queue = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    bench.stream = ResultStream(bench.client, RUN, info.epoch, bench.limits)
    await queue.enqueue(0)
    bench.sync.config_set("maxmemory", 1)
    try:
        with pytest.raises(QueueError, match="full"):
            await queue.enqueue(1)
        assert await bench.complete(await bench.lease(3)) == [Outcome.FIRST] * 3
        assert await bench.commit_all() == 3
    finally:
        bench.sync.config_set("maxmemory", 0)
    assert await queue.enqueue(1) == 1000
    assert (await bench.counts()).committed == 3


async def test_runs_are_listed_by_priority_and_then_by_age(bench):
    for name, priority in (("older", 0), ("newer", 0), ("urgent", 5)):
        await bench.runs.create(manifest(1, run=name), priority=priority)
    assert [info.run for info in await bench.runs.list()] == ["urgent", "older", "newer"]


async def test_calls_count_for_a_registered_worker_only(bench):
    await bench.load()
    record = f"rq:worker:{ONE}"
    bench.sync.hset(record, mapping={"birth": "", "queues": RUN, "state": "busy", "pid": 7})
    bench.sync.sadd("rq:workers", record)
    await bench.complete(await bench.lease(3))
    await bench.fail(await bench.lease(2))
    await bench.complete(await bench.lease(1, TWO), TWO)
    await bench.runs.set_gauges(ONE, {"tokens_per_second": 3.5}, 60)
    (worker,) = await bench.runs.workers()
    assert (worker.name, worker.finished, worker.failed, worker.pid) == (ONE, 3, 2, 7)
    assert worker.gauges == {"tokens_per_second": "3.5"}
    assert not bench.sync.exists(f"rq:worker:{TWO}")
