"""The last objects of a run: dead letters, manifest, README, and _SUCCESS at the very end.

Every step writes whole objects from what storage and the queue say now, so a sink that was killed
in between, or two that finish at once, simply do it again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from common import codec
from common.build import build
from common.cliutil import genq_version
from common.errors import VerifyError
from common.failpoint import declare, hit
from common.ids import row_of
from common.parts.chain import walk
from common.records import Row
from consumer.sink.card import readme

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from common.objectstore import ObjectStore, RunPaths
    from common.parts.index import FoundPart
    from common.queue.run_state import FailureInfo
    from common.records import RunManifest
    from consumer.sink.recover import Ledger

MANIFEST_VERSION = 1
_SHARD_LIMIT_BYTES = 16 * 2**30
_JSON = "application/json"
declare(
    "sink.finish.failed",
    "sink.finish.manifest",
    "sink.finish.readme",
    "sink.finish.success",
)


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished run in figures."""

    run: str
    suffix: str
    rows: int
    samples: int
    items: int
    committed: int
    dead: int
    verdicts: dict[str, int]
    failures: dict[str, int]  # dead letters by class
    engines: list[str]
    models: list[str]
    prompt_tokens: int
    completion_tokens: int


def write_end(
    store: ObjectStore,
    paths: RunPaths,
    manifest: RunManifest,
    ledger: Ledger,
    failures: Sequence[FailureInfo],
) -> Summary:
    """Write the last objects of a run in which nothing is open; _SUCCESS is the last of them.

    Raises:
        StoreError: the store gave no answer; call it again.
        VerifyError: storage lacks items that the queue takes for committed, or a part is damaged.
    """
    ledger.catch_up()
    dead = _dead(manifest, ledger, failures)
    store.put(
        paths.failed,
        b"".join(_dead_letters(store, paths, manifest, dead)),
        content_type="application/x-ndjson",
    )
    hit("sink.finish.failed")
    survey = _Survey(paths)
    for part in walk(store, paths, ledger.suffix):
        survey.take(part)
    summary = survey.summary(manifest, ledger, dead)
    store.put(paths.manifest, _manifest(manifest, summary, survey.listed), content_type=_JSON)
    hit("sink.finish.manifest")
    url = f"{store.url}/{paths.run}"
    store.put(paths.readme, readme(summary, url).encode(), content_type="text/markdown")
    hit("sink.finish.readme")
    success = {"items": summary.items, "committed": summary.committed, "dead": summary.dead}
    store.put(paths.success, codec.dumps(success), content_type=_JSON)
    hit("sink.finish.success")
    return summary


def _dead(
    manifest: RunManifest, ledger: Ledger, failures: Sequence[FailureInfo]
) -> list[FailureInfo]:
    """Return the dead letters by item, those left out that were committed after all."""
    accounted = ledger.copy_of_bits()
    dead = [one for one in sorted(failures, key=lambda one: one.item) if accounted.add(one.item)]
    missing = manifest.items - len(accounted)
    if missing:
        raise VerifyError(
            f"Run {manifest.run} is closed, but storage lacks {missing} of its items.",
            why=f"The first is item {next(accounted.missing())}; a part may have been deleted.",
            fix=f"gen-producer load --run {manifest.run}    puts back what is missing",
        )
    return dead


def _dead_letters(
    store: ObjectStore, paths: RunPaths, manifest: RunManifest, dead: Sequence[FailureInfo]
) -> Iterator[bytes]:
    """Yield a line for each dead letter, with its row as it was loaded; one shard at a time."""
    lines: list[bytes] = []
    shard = -1
    for one in dead:
        number, sample = row_of(one.item, manifest.settings.samples)
        if number // manifest.shard_rows != shard:
            shard = number // manifest.shard_rows
            data = store.get(paths.prompts(manifest.fingerprint, shard))
            lines = codec.decompress(data, limit_bytes=_SHARD_LIMIT_BYTES).split(b"\n")
        row = build(Row, codec.loads(lines[number % manifest.shard_rows]))
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
        yield codec.dumps(letter) + b"\n"


class _Survey:
    """What the parts hold together; of each only a line of the manifest is kept."""

    def __init__(self, paths: RunPaths) -> None:
        self.listed: list[dict[str, Any]] = []
        self._paths = paths
        self._verdicts: Counter[str] = Counter()
        self._engines: set[str] = set()
        self._models: set[str] = set()
        self._prompt_tokens = self._completion_tokens = 0

    def take(self, part: FoundPart) -> None:
        index = part.index
        self.listed.append(
            {
                "part": index.part,
                "key": self._paths.part(index.part, index.suffix).removeprefix(
                    f"{self._paths.run}/"
                ),
                "rows": index.rows,
                "bytes": index.bytes,
                "sha256": index.sha256,
                "etag": part.stat.etag,
            }
        )
        self._verdicts.update(index.verdicts)
        self._engines.update(index.engines)
        self._models.update(index.models)
        self._prompt_tokens += index.prompt_tokens
        self._completion_tokens += index.completion_tokens

    def summary(
        self, manifest: RunManifest, ledger: Ledger, dead: Sequence[FailureInfo]
    ) -> Summary:
        return Summary(
            run=manifest.run,
            suffix=ledger.suffix,
            rows=manifest.rows,
            samples=manifest.settings.samples,
            items=manifest.items,
            committed=len(ledger),
            dead=len(dead),
            verdicts=dict(self._verdicts),
            failures=dict(Counter(one.verdict for one in dead)),
            engines=sorted(self._engines),
            models=sorted(self._models),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
        )


def _manifest(manifest: RunManifest, summary: Summary, listed: list[dict[str, Any]]) -> bytes:
    return codec.dumps(
        {
            "version": MANIFEST_VERSION,
            "run": manifest.run,
            "finished": _utc(datetime.now(UTC).timestamp()),
            "genq_version": genq_version(),
            "input": {
                "source": manifest.source,
                "fingerprint": manifest.fingerprint,
                "rows": manifest.rows,
            },
            "settings": manifest.settings,
            "counts": summary,
            "parts": listed,
        }
    )


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
