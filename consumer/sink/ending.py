"""The end of a run: its last objects, and its opening again when dead letters are requeued."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from common.failpoint import declare, hit
from consumer.sink.card import closing_lines
from consumer.sink.finish import DeadLetters, end_stands, write_end

if TYPE_CHECKING:
    from common.ids import Item
    from common.objectstore import RunPaths
    from common.records import RunInfo, RunManifest
    from consumer.sink.recover import Ledger
    from consumer.sink.tools import Calls, Tools

log = structlog.get_logger()
REASON_ITEMS = 1000  # dead letters in memory at a time, with their texts
declare("sink.reopen.success_gone", "sink.reopen.opened")


class Ending:
    """Writes the end of one run, and takes it away again; see `Calls` for what it raises."""

    def __init__(self, tools: Tools, calls: Calls, info: RunInfo, paths: RunPaths) -> None:
        self._store = tools.store
        self._runs = tools.runs
        self._say = tools.say
        self._calls = calls
        self._run = info.run
        self._paths = paths

    async def is_written(self, closing: str) -> bool:
        """Return whether the end of this closing is there, whole."""
        return await self._calls.store(lambda: end_stands(self._store, self._paths, closing))

    async def write(self, manifest: RunManifest, ledger: Ledger, closing: str) -> bool:
        """Write the end of this closing; return False where the run was opened again meanwhile.

        It may have been closed anew, too: the caller looks again, and writes that end over this.

        Raises:
            VerifyError: storage lacks items that the queue takes for committed, or a prompt shard.
        """
        letters = await self._dead_letters(manifest, ledger)
        before = await self._calls.redis(lambda: self._runs.sample(self._run))
        summary = await self._calls.store(
            lambda: write_end(
                self._store, self._paths, manifest, ledger, letters, closing=closing, counts=before
            )
        )
        counts = await self._calls.redis(lambda: self._runs.sample(self._run))
        if counts.state != "closed" or counts.closing != closing:
            await self.take_success_away()  # it must not outlive that
            return False
        log.info("sink.finished", run=self._run, committed=summary.committed, dead=summary.dead)
        for line in closing_lines(summary, f"{self._store.url}/{self._run}"):
            self._say(line)
        return True

    async def take_back(self) -> None:
        """Take _SUCCESS away, open the run, and look again.

        The second look is for a sink that was about to write _SUCCESS: whoever is last, sink or
        reopening, takes it away.
        """
        await self.take_success_away()
        hit("sink.reopen.success_gone")
        await self._calls.redis(lambda: self._runs.reopen(self._run))
        hit("sink.reopen.opened")
        await self.take_success_away()
        log.info("sink.reopened", run=self._run)

    async def take_success_away(self) -> None:
        """Take _SUCCESS away; whoever does this looks at the run again afterwards."""
        await self._calls.store(lambda: self._store.delete(self._paths.success))

    async def _dead_letters(self, manifest: RunManifest, ledger: Ledger) -> DeadLetters:
        letters = DeadLetters(self._store, self._paths, manifest, ledger)
        dead = await self._calls.redis(lambda: self._runs.dead_items(self._run))
        chosen = await self._calls.store(lambda: letters.choose(dead))
        for start in range(0, len(chosen), REASON_ITEMS):
            some = {item: dead[item] for item in chosen[start : start + REASON_ITEMS]}
            await self._add(letters, some)
        return letters

    async def _add(self, letters: DeadLetters, some: dict[Item, str]) -> None:
        told = await self._calls.redis(lambda: self._runs.reasons(self._run, some))
        await self._calls.store(lambda: letters.add(told))
