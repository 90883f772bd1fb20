"""Dead letters of a finished run that Redis lost: shown, and queued again, by what storage holds.

While _SUCCESS is there, failed.jsonl and the parts tell all that Redis knew of the run. To queue
dead letters again the run is put back as it was, but for those: they are what is left to be done.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from common.errors import QueueError, VerifyError
from common.failpoint import declare, hit
from common.ids import run_name
from common.objectstore import RunPaths
from common.prove import committed_items
from common.s3 import open_store
from producer.load.loader import LoadRequest, load
from producer.manifest import find_manifest
from producer.stored_letters import stored_failures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from common.errors import GenqError
    from common.ids import Item
    from common.queue.failures import FailureInfo
    from common.records import Verdict
    from common.settings import Settings
    from producer.console import Console

declare("requeue.success_gone", "requeue.put_back")


class LostRun:
    """A run that Redis does not know, as storage tells its end."""

    def __init__(self, run: str, settings: Settings, console: Console, missing: GenqError) -> None:
        """Raise ``missing`` if the run is not finished, StoreError if that cannot be told.

        ``missing`` says why Redis was of no help: it does not have the run, or is away.
        """
        self.run = run_name(run)
        self._settings = settings
        self._console = console
        self._missing = missing
        if not settings.store:
            raise missing
        self._store = open_store(settings)
        manifest = find_manifest(self._store, self.run)
        if manifest is None or self._store.stat(RunPaths(self.run).success) is None:
            raise missing
        self._manifest = manifest

    def letters(self, verdict: Verdict | None, items: Sequence[Item]) -> Iterator[FailureInfo]:
        """Yield the dead letters of a class, or all; of the items named, or of any."""
        named = set(items)
        for one in stored_failures(self._store, self._manifest):
            if verdict in (None, one.verdict) and (not named or one.item in named):
                yield one

    def by_class(self, items: Sequence[Item]) -> dict[str, int]:
        """Return how many of the items named, or of all, are dead, by class."""
        return dict(Counter(one.verdict for one in self.letters(None, items)))

    def examples(
        self, verdict: Verdict | None, *, each: int
    ) -> tuple[dict[str, int], list[FailureInfo]]:
        """Return how many are dead, by class, the commonest first; and at most ``each`` of each."""
        why = f"Redis does not have run {self.run}:"
        if isinstance(self._missing, QueueError):
            why = self._missing.what.removesuffix(".") + ":"
        self._console.say(f"{why} this is from failed.jsonl.")
        tally: Counter[str] = Counter()
        shown: dict[str, list[FailureInfo]] = {}
        for one in self.letters(None, ()):
            tally[one.verdict] += 1
            if verdict in (None, one.verdict) and tally[one.verdict] <= each:
                shown.setdefault(one.verdict, []).append(one)
        ordered = dict(sorted(tally.items(), key=lambda pair: (-pair[1], pair[0])))
        return ordered, [one for name in ordered for one in shown.get(name, ())]

    def requeue(self, verdict: Verdict | None, items: Sequence[Item]) -> int:
        """Put the run back into Redis with these dead letters queued, and the others dead.

        _SUCCESS is taken away before anything may be generated, and once more afterwards: a sink
        that was about to write it when Redis was lost may have done so in between. Killed at any
        point, the run is unfinished, and `load --run` queues all that is not committed.

        Raises:
            VerifyError: storage does not tell each item as committed or dead.
        """
        chosen = {one.item for one in self.letters(verdict, items)}
        self._refuse_unproven()
        store, manifest = self._store, self._manifest
        store.delete(RunPaths(self.run).success)
        hit("requeue.success_gone")

        def others() -> Iterator[FailureInfo]:
            return (one for one in stored_failures(store, manifest) if one.item not in chosen)

        done = load(LoadRequest(run=self.run, dead=others), self._settings, self._console)
        hit("requeue.put_back")
        store.delete(RunPaths(self.run).success)
        return done.new

    def _refuse_unproven(self) -> None:
        """Refuse where parts and dead letters are not together all of the run, each item once."""
        bitmap = committed_items(self._store, self._manifest)
        seen: set[int] = set()
        for one in self.letters(None, ()):
            if bitmap[one.item // 8] & 0x80 >> one.item % 8 or one.item in seen:
                raise self._unproven(f"Item {one.item} is in failed.jsonl, and elsewhere, too.")
            seen.add(one.item)
        ended = int.from_bytes(bitmap, "big").bit_count() + len(seen)
        if ended != self._manifest.items:
            left = self._manifest.items - ended
            raise self._unproven(f"{left:,} items are neither committed nor in failed.jsonl.")

    def _unproven(self, why: str) -> VerifyError:
        return VerifyError(
            f"Run {self.run} cannot be put back: storage does not prove how it ended.",
            why=why,
            fix=f"gen-producer verify {self.run}",
        )
