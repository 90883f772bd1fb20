"""One run, from its first result to its end: read, batch, commit, acknowledge, finish.

Promised: an entry is acknowledged only when its item is in a part that this process has written or
read. Not promised: that a result is written by the sink that read it first.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from common.build import NewerVersionError
from common.errors import EpochError, GenqError, QueueError, RunClosedError, VerifyError
from common.failpoint import declare, hit
from common.objectstore import RunPaths
from common.queue.results import ResultStream
from common.queue.run_list import OVER
from common.queue.standing import stop_of
from common.records import Verdict
from consumer.sink.batcher import Batch, Batcher
from consumer.sink.commit import UnstorableError
from consumer.sink.decode import decode
from consumer.sink.ending import Ending
from consumer.sink.intake import Intake
from consumer.sink.opening import open_run, own_manifest
from consumer.sink.outage import StoppingError, pause
from consumer.sink.rest import Rest
from consumer.sink.told import Told, end_of
from consumer.sink.tools import Calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.audit import RunCounts
    from common.parts.index import PartIndex
    from common.records import Completion, RunInfo, StreamEntry
    from consumer.sink.opening import Opened
    from consumer.sink.recover import Ledger
    from consumer.sink.tools import Tools

log = structlog.get_logger()
POLL_SECONDS = 0.25  # between looks at a stream that was empty
LOOK_SECONDS = 0.5  # between looks at a run's counts
BROKEN_SECONDS = 30.0  # between tries at a run that storage does not hold as it should
FLUSH_SECONDS = 20.0  # what a last commit may take after SIGTERM
declare("sink.read", "sink.commit.before", "sink.commit.after", "sink.closed")


class RunSink:
    """The sink of one run in one of its epochs."""

    def __init__(self, tools: Tools, info: RunInfo) -> None:
        self.run = info.run
        self.epoch = info.epoch
        self.over = False  # finished or cancelled, and nothing is left to do
        self.dead = 0  # dead letters of a finished run
        self.broken: VerifyError | None = None
        self._tools = tools
        self._info = info
        self._paths = RunPaths(info.run)
        self._stream = ResultStream(tools.redis, info.run, info.epoch, tools.limits)
        self._calls = Calls(tools)
        self._intake = Intake(tools, self._stream)
        self._ending = Ending(tools, self._calls, info, self._paths)
        self._batcher = Batcher(tools.bounds, tools.clock)
        self._open: Opened | None = None
        self._closed = info.state == "closed"
        self._ended = ""  # the closing whose end was seen or written
        self._compared = ""  # the closing of which storage was asked how many items it holds,
        self._stored = 0  # and what it said
        self._rest = Rest(tools.stop, tools.clock)  # until it is looked at again
        self._marked = True  # _SUCCESS may be there
        self._behind = False  # Redis knows less committed items than the ledger
        self._left_newer = False  # results of a newer version were met
        self._look_at = 0.0
        self._stopped = ""  # what a person has to end, as it was said

    @property
    def in_hand(self) -> int:
        """How many results were read and are not committed."""
        return len(self._batcher)

    @property
    def age_seconds(self) -> float:
        """How long the oldest of them has waited."""
        return self._batcher.age_seconds()

    def heard(self, info: RunInfo | None, *, stirs: bool) -> None:
        """Take what the list of runs says now, None if it is gone; ``stirs``: see `RunList`."""
        if info is None or info.epoch != self.epoch:
            same = False
        elif self._closed:
            same = info.state == "closed" and info.closing == self._ended
        else:
            same = info.state == "cancelled"
        if stirs or not same:
            self._rest.wake()

    async def serve(self) -> None:
        """Serve the run until the sink stops or the run has another epoch."""
        while not self._tools.stop.is_set():
            try:
                if not self.over or await self._stirs():
                    await (self._watch() if self._closed else self._step())
                    if not self._tools.stop.is_set():  # else it may have been cut short
                        self.broken = None
            except StoppingError:
                break
            except EpochError as error:
                log.warning("sink.epoch_gone", run=self.run, what=error.what, fix=error.fix)
                await self._store_orphans()
                return
            except RunClosedError:
                self._look_at = 0.0  # it was ended since it was looked at
            except VerifyError as error:
                self._break(error)
                await pause(self._tools.stop, BROKEN_SECONDS)
        await self._last_flush()

    # --- results

    async def _step(self) -> None:
        opened = await self._opened()
        if self._marked:  # left by whoever was killed, or slept
            await self._ending.take_success_away()
            self._marked = False
        entries = await self._calls.redis(lambda: self._intake.next(self._batcher.room()))
        if entries:
            hit("sink.read")
            await self._accept(opened, entries)
        elif not self._batcher.due():
            await self._quiet(opened)
        if self._batcher.due():
            await self._flush(opened)

    async def _opened(self) -> Opened:
        if self._open is None:
            self._open = await self._calls.store(lambda: open_run(self._tools, self._info))
        return self._open

    async def _accept(self, opened: Opened, entries: Sequence[StreamEntry]) -> None:
        news = [entry for entry in entries if not self._batcher.holds(entry)]
        results = await asyncio.to_thread(decode, news)
        self._intake.learn([result[1] for result in results if isinstance(result, tuple)])
        for entry, result in zip(news, results, strict=True):
            if isinstance(result, NewerVersionError):
                self._leave(result)
            elif isinstance(result, str):
                await self._reject(entry, result)
            else:
                completion, size = result
                self._batcher.add(replace(entry, payload=b""), completion, size)
            if self._batcher.due():
                await self._flush(opened)

    def _leave(self, error: NewerVersionError) -> None:
        """Leave a result unacknowledged for a sink that knows its version."""
        if not self._left_newer:
            log.error("sink.newer_result_left", run=self.run, why=str(error))
        self._left_newer = True

    async def _reject(self, entry: StreamEntry, reason: str) -> None:
        log.warning("sink.result_rejected", run=self.run, item=entry.item, reason=reason)
        self._tools.figures.of(self.run).rejected += 1
        await self._calls.redis(lambda: self._stream.reject(entry, Verdict.MALFORMED, reason))

    # --- the commit

    async def _flush(self, opened: Opened) -> None:
        began = self._tools.clock()
        batch = self._batcher.seal()
        part = await self._write(opened, batch)
        opened.ledger.save(self._tools.folder)
        hit("sink.commit.before")
        entries = list(batch.entries.values())
        new = await self._calls.redis(lambda: self._stream.commit(entries))
        hit("sink.commit.after")
        self._tools.figures.committed(
            self.run,
            part,
            entries=len(entries),
            now=time.time(),
            seconds=self._tools.clock() - began,
        )
        self._say_stored(opened, part, entries=len(entries), new=new)

    def _say_stored(
        self, opened: Opened, part: PartIndex | None, *, entries: int, new: int
    ) -> None:
        done = f"{len(opened.ledger)}/{opened.manifest.items}"
        if part is None:  # another sink had stored all of them, or this one before it was killed
            log.info("sink.stored_before", run=self.run, results=entries, new=new, committed=done)
        else:
            log.info(
                "sink.committed",
                run=self.run,
                part=part.part,
                rows=part.rows,
                bytes=part.bytes,
                committed=done,
            )

    async def _write(self, opened: Opened, batch: Batch) -> PartIndex | None:
        while True:
            completions = [batch.completions[item] for item in sorted(batch.completions)]

            def write(completions: Sequence[Completion] = completions) -> PartIndex | None:
                return opened.writer.write(completions)

            try:
                return await self._calls.store(write)
            except UnstorableError as error:
                for item, reason in error.reasons.items():
                    for entry in batch.drop(item):
                        await self._reject(entry, reason)

    async def _store_orphans(self) -> None:
        """Store what is in hand without Redis, which lost the run: a `load` finds it in storage.

        Whatever goes wrong, the items are made again.
        """
        if not len(self._batcher) or self._open is None:
            return
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._calls.store(lambda: own_manifest(self._tools.store, self._info))
                await self._write(self._open, self._batcher.seal())
        except (GenqError, StoppingError, TimeoutError) as error:
            log.warning("sink.left_unstored", run=self.run, reason=repr(error))

    async def _last_flush(self) -> None:
        """Commit what is in hand if that is quick; else it stays for the next sink."""
        if not len(self._batcher) or self._open is None:
            return
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._flush(self._open)
        except (StoppingError, QueueError, VerifyError, TimeoutError) as error:
            log.warning("sink.left_unacknowledged", run=self.run, reason=repr(error))

    async def _compare(self, ledger: Ledger, counts: RunCounts) -> None:
        """Tell Redis what is committed where it went back to an earlier moment (crash, fail-over).

        Results that are in its stream again are left to the stream; ours among them are read again.
        """
        missing = len(ledger) - counts.committed
        if missing > counts.generated or (missing > 0 and not self._behind):
            bits = ledger.copy_of_bits().to_bytes()
            told = await self._calls.redis(
                lambda: self._tools.runs.restore(self.run, self.epoch, committed=bits)
            )
            self._intake.read_again()
            if told:  # else a sink was killed before it could tell, or is about to
                log.warning("sink.redis_went_back", run=self.run, items=told)
        self._behind = missing > 0

    # --- the end

    async def _quiet(self, opened: Opened) -> None:
        """Nothing came: seal early if nothing will come, end the run if nothing is open."""
        await pause(self._tools.stop, POLL_SECONDS)
        counts = await self._look()
        if counts is None:
            return
        if counts.state not in OVER:  # else there is nothing to be made again
            await self._compare(opened.ledger, counts)
        if counts.state == "closed":
            self._closed = True
        elif len(self._batcher):
            if not counts.queued + counts.waiting + counts.leased:
                await self._flush(opened)
        elif counts.settled and await self._calls.redis(lambda: self._tools.runs.close(self.run)):
            hit("sink.closed")
            self._closed = True
            self._look_at = 0.0
        else:
            await self._say_stop(counts)
        self.over = _is_cancelled(counts)
        if self.over:
            self._rest.begin()

    async def _say_stop(self, counts: RunCounts) -> None:
        """Say once what nobody but a person will end, and once that it is over."""
        stop = None
        if counts.open:
            suspended = await self._calls.redis(self._tools.runs.suspended)
            state, reason = counts.state, counts.hold_reason
            stop = stop_of(self.run, state, suspended=suspended, reason=reason)
        if stop and stop.what != self._stopped:
            log.warning("sink.waiting", run=self.run, **stop._asdict())
        elif self._stopped and not stop and counts.state in {"loading", "open"}:
            log.info("sink.goes_on", run=self.run)
        self._stopped = stop.what if stop else ""

    async def _watch(self) -> None:
        """Finish a closed run; open it again if somebody put its dead letters on the queue."""
        await pause(self._tools.stop, POLL_SECONDS)
        counts = await self._look()
        if counts is None:
            return
        self._marked = True
        if counts.state != "closed":
            self._begin_again()
        elif counts.queued + counts.waiting + counts.leased or await self._went_back(counts):
            await self._opened()  # the store may hold another run of this name
            await self._ending.take_back()
            self._begin_again()
        else:
            self.over = await self._finish(counts.closing)
            self.dead = counts.dead

    def _begin_again(self) -> None:
        """The run is open again. Its next closing may have the number of one that Redis forgot."""
        self._closed = self.over = False
        self._ended = self._compared = ""

    async def _went_back(self, counts: RunCounts) -> bool:
        """Return whether storage holds more of a closed run than Redis knows: it went back.

        Storage is asked once a closing: its ledger only where no end tells of this closing.
        """
        if self._compared != counts.closing:
            end = await self._calls.store(lambda: end_of(self._tools.store, self.run)) or Told()
            self._stored = end.committed
            if end.closing != counts.closing and end.committed <= counts.committed:
                opened = await self._opened()
                await self._calls.store(opened.ledger.catch_up)
                self._stored = len(opened.ledger)
            self._compared = counts.closing
        return self._stored > counts.committed

    async def _finish(self, closing: str) -> bool:
        """Return whether the end of this closing stands, as seen a moment ago or written now."""
        stood = self._ended == closing
        if stood and not self._rest.due:
            return True
        self._ended = ""
        if not await self._ending.is_written(closing):
            opened, stood = await self._opened(), False
            if not await self._ending.write(opened.manifest, opened.ledger, closing):
                return False
        self._ended = closing
        (self._rest.go_on if stood else self._rest.begin)()
        return True

    async def _stirs(self) -> bool:
        """Rest, as the run is over; return whether there may be something to do again."""
        self._let_go()
        await self._rest.wait()
        self._look_at = 0.0
        if self._closed:
            return True
        counts = await self._look()
        self.over = counts is None or _is_cancelled(counts)
        self._rest.go_on()
        return not self.over

    async def _look(self) -> RunCounts | None:
        """Return the run's counts, or None if it is too early to ask again."""
        now = self._tools.clock()
        if now < self._look_at or self._tools.stop.is_set():
            return None
        self._look_at = now + LOOK_SECONDS
        counts = await self._calls.redis(lambda: self._tools.runs.sample(self.run))
        if counts.epoch != self.epoch:
            raise EpochError(f"Run {self.run} has another epoch.")
        return counts

    def _break(self, error: VerifyError) -> None:
        if str(error) != str(self.broken):  # said once, not at every try
            log.error("sink.broken", run=self.run, what=error.what, why=error.why, fix=error.fix)
        self.broken = error
        self._look_at = 0.0
        self._let_go()

    def _let_go(self) -> None:
        """Keep nothing of the run in memory: what is in hand and not committed is read again."""
        self._open = None
        self._batcher.seal()
        self._intake.read_again()


def _is_cancelled(counts: RunCounts) -> bool:
    """Return whether a cancelled run has nothing left to store.

    What else is open, by a cancel that was killed or by `rq requeue`, is handed out to nobody, and
    no result of it is taken any more.
    """
    return counts.state == "cancelled" and not counts.generated
