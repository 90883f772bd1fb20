"""The last objects of a run: dead letters, manifest, README, and _SUCCESS at the very end.

Every step writes whole objects from what storage and the queue say now, so a sink that was killed
in between, or two that finish at once, simply do it again.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from common import codec
from common.build import build
from common.cliutil import genq_version
from common.errors import VerifyError
from common.failpoint import declare, hit
from common.ids import row_of
from common.objectstore import ObjectMissingError
from common.parts.chain import check_end, walk
from common.records import Row
from common.shard import checked_lines
from consumer.sink.card import readme
from consumer.sink.summary import Survey

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from common.audit import RunCounts
    from common.ids import Item
    from common.objectstore import ObjectStore, RunPaths
    from common.queue.failures import FailureInfo
    from common.records import RunManifest
    from consumer.sink.recover import Ledger
    from consumer.sink.summary import Summary

MANIFEST_VERSION = 1
CLOSING = "genq-closing"  # metadata of the last objects: which closing of the run they tell of
_SHARD_LIMIT_BYTES = 16 * 2**30
_JSON = "application/json"
declare(
    "sink.finish.failed",
    "sink.finish.manifest",
    "sink.finish.readme",
    "sink.finish.success",
)


class DeadLetters:
    """failed.jsonl in the making; of the dead letters only its lines are kept in memory."""

    def __init__(
        self, store: ObjectStore, paths: RunPaths, manifest: RunManifest, ledger: Ledger
    ) -> None:
        self.classes: Counter[str] = Counter()
        self.data = bytearray()
        self._store = store
        self._paths = paths
        self._manifest = manifest
        self._ledger = ledger
        self._shard = -1
        self._rows: list[bytes] = []  # of that shard

    def choose(self, dead: Iterable[Item]) -> list[Item]:
        """Return the dead items in order, those left out that were committed after all.

        Raises:
            StoreError: the store gave no answer; call it again.
            VerifyError: storage lacks items that the queue takes for committed.
        """
        self._ledger.catch_up()
        accounted = self._ledger.copy_of_bits()
        chosen = [item for item in sorted(dead) if accounted.add(item)]
        missing = self._manifest.items - len(accounted)
        if missing:
            raise VerifyError(
                f"Run {self._manifest.run} is closed, but storage lacks {missing} of its items.",
                why=f"The first is item {next(accounted.missing())}; a part may be gone.",
                fix=f"gen-producer load --run {self._manifest.run}    puts back what is missing",
            )
        return chosen

    def add(self, failures: Sequence[FailureInfo]) -> None:
        """Add a line for each, in the order of `choose`, with its row as it was loaded.

        Raises:
            StoreError: the store gave no answer; nothing was added, call it again.
            VerifyError: a prompt shard is damaged, or not there; it is named.
        """
        lines = [self._line(one) for one in failures]
        self.data += b"".join(lines)
        self.classes.update(one.verdict for one in failures)

    def _line(self, one: FailureInfo) -> bytes:
        number, sample = row_of(one.item, self._manifest.settings.samples)
        row = self._row(number)
        letter = {
            "k": one.item,
            "row": number,
            "sample": sample,
            "row_id": row.id,
            "verdict": one.verdict,
            "text": one.text,
            "worker": one.worker,
            "at": _utc(one.at),
            "messages": row.messages,
            "metadata": row.metadata,
        }
        return codec.dumps(letter) + b"\n"

    def _row(self, number: int) -> Row:
        shard, place = divmod(number, self._manifest.shard_rows)
        key = self._paths.prompts(self._manifest.fingerprint, shard)
        try:
            if shard != self._shard:
                data, known = self._store.get(key), self._manifest.shards[shard]
                self._rows = checked_lines(data, known, limit_bytes=_SHARD_LIMIT_BYTES)
                self._shard = shard
            return build(Row, codec.loads(self._rows[place]))
        except ObjectMissingError as error:
            raise self._harmed(key, "is not there", error.why) from error
        except (ValueError, IndexError) as error:
            raise self._harmed(key, "is damaged", str(error)) from error

    def _harmed(self, key: str, what: str, why: str) -> VerifyError:
        return VerifyError(
            f"{self._store.url}/{key} {what}: the rows of dead letters are not known.",
            why=why,
            fix="Put it back from a copy. Without one, delete it, and give this the data set as it"
            f" was:\ngen-producer load DATASET --run {self._manifest.run}",
        )


def write_end(
    store: ObjectStore,
    paths: RunPaths,
    manifest: RunManifest,
    ledger: Ledger,
    letters: DeadLetters,
    *,
    closing: str,
    counts: RunCounts | None = None,
) -> Summary:
    """Write the last objects of a run in which nothing is open; _SUCCESS is the last of them.

    Each names the closing that it tells of; see `end_stands`. ``counts`` are the queue's: the
    manifest keeps what storage alone cannot tell, the work that was thrown away.

    Raises:
        StoreError: the store gave no answer; call it again.
        VerifyError: a part is damaged, or gone since this sink has written or read it.
    """
    mark = {CLOSING: closing}
    store.put(paths.failed, bytes(letters.data), content_type="application/x-ndjson", metadata=mark)
    hit("sink.finish.failed")
    survey = Survey(paths)
    for part in walk(store, paths, ledger.suffix):
        survey.take(part)
    _refuse_less(store, paths, ledger, survey)
    summary = survey.summary(
        manifest, suffix=ledger.suffix, committed=len(ledger), dead=letters.classes
    )
    listing = _manifest(manifest, summary, survey.listed, closing, counts)
    store.put(paths.manifest, listing, content_type=_JSON, metadata=mark)
    hit("sink.finish.manifest")
    url = f"{store.url}/{paths.run}"
    card = readme(summary, url).encode()
    store.put(paths.readme, card, content_type="text/markdown", metadata=mark)
    hit("sink.finish.readme")
    success = {
        "items": summary.items,
        "committed": summary.committed,
        "dead": summary.dead,
        "closing": closing,
    }
    store.put(paths.success, codec.dumps(success), content_type=_JSON, metadata=mark)
    hit("sink.finish.success")
    return summary


def _refuse_less(store: ObjectStore, paths: RunPaths, ledger: Ledger, survey: Survey) -> None:
    """Refuse to call finished what storage holds no longer: the ledger still knows what was there.

    Raises:
        VerifyError: a part was deleted since.
    """
    parts = len(survey.listed)
    check_end(store, paths, ledger.suffix, parts)
    lost = len(ledger) - sum(part["rows"] for part in survey.listed)
    if lost > 0:
        raise VerifyError(
            f"{store.url}/{paths.data_prefix} lacks {lost} completions that were there.",
            why=f"{ledger.next - parts} of the last parts are gone.",
            fix=f"gen-producer load --run {paths.run}    has them made again",
        )


def end_stands(store: ObjectStore, paths: RunPaths, closing: str) -> bool:
    """Return whether all last objects are there, and tell of this closing.

    Of an earlier one they may be left by whoever was killed, or written by a sink that slept.

    Raises:
        StoreError: the store gave no answer; call it again.
    """
    for key in (paths.success, paths.manifest, paths.failed, paths.readme):
        found = store.stat(key)
        if found is None or found.metadata.get(CLOSING) != closing:
            return False
    return True


def _manifest(
    manifest: RunManifest,
    summary: Summary,
    listed: list[dict[str, Any]],
    closing: str,
    counts: RunCounts | None,
) -> bytes:
    return codec.dumps(
        {
            "version": MANIFEST_VERSION,
            "run": manifest.run,
            "finished": _utc(datetime.now(UTC).timestamp()),
            "closing": closing,
            "genq_version": genq_version(),
            "input": {
                "source": manifest.source,
                "fingerprint": manifest.fingerprint,
                "rows": manifest.rows,
            },
            "settings": manifest.settings,
            "counts": summary,
            "waste": counts and {"tokens": counts.wasted_tokens, "failed_tries": counts.failures},
            "parts": listed,
        }
    )


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
