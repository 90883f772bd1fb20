"""Dead letters: how many of each class, and a few of each, from failed.jsonl or from Redis."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from common import codec
from common.build import build
from common.ids import row_of
from common.objectstore import ObjectMissingError, RunPaths
from common.records import Row
from producer.report.data import Example
from producer.report.survey import EXAMPLES
from producer.stored_letters import letters_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.objectstore import ObjectStore
    from common.queue.failures import FailureInfo
    from common.records import RunManifest

_REASON_CHARS = 300
_TEXT_CHARS = 280
_SHARD_LIMIT_BYTES = 16 * 2**30


@dataclass(slots=True)
class Letters:
    """What is dead."""

    source: str  # failed.jsonl | redis
    by_class: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Example]] = field(default_factory=dict)

    def wants(self, verdict: str) -> bool:
        """Return whether another example of a class is welcome."""
        return len(self.examples.get(verdict, ())) < EXAMPLES

    def show(self, example: Example) -> None:
        """Add an example."""
        self.examples.setdefault(example.verdict, []).append(example)


def stored_letters(store: ObjectStore, manifest: RunManifest, *, texts: bool) -> Letters | None:
    """Return what failed.jsonl says, or None where there is none. Read line by line.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: a line is damaged.
    """
    found = store.stat(RunPaths(manifest.run).failed)
    if found is None:
        return None
    letters = Letters("failed.jsonl")
    for letter in letters_of(store, manifest, found):
        letters.by_class[letter["verdict"]] += 1
        if letters.wants(letter["verdict"]):
            letters.show(_example(letter, texts=texts))
    return letters


def _example(letter: dict[str, Any], *, texts: bool) -> Example:
    return Example(
        verdict=str(letter["verdict"]),
        kept=False,
        k=int(letter["k"]),
        row=int(letter["row"]),
        sample=int(letter["sample"]),
        row_id=letter["row_id"],
        tokens=None,
        reason=_reason(str(letter["text"])),
        prompt=prompt_of(letter["messages"]) if texts else None,
    )


def letters_in_redis(
    store: ObjectStore,
    manifest: RunManifest,
    by_class: dict[str, int],
    failures: Sequence[FailureInfo],
    *,
    texts: bool,
) -> Letters:
    """Return what Redis says of a run that is not finished; rows are read from its shards.

    Raises:
        StoreError: the store could not be asked.
    """
    letters = Letters("redis", Counter(by_class))
    for one in sorted(failures, key=lambda one: one.item):
        if not letters.wants(one.verdict):
            continue
        number, sample = row_of(one.item, manifest.settings.samples)
        row = _row(store, manifest, number)
        letters.show(
            Example(
                verdict=one.verdict,
                kept=False,
                k=one.item,
                row=number,
                sample=sample,
                row_id=row.id if row else None,
                tokens=None,
                reason=_reason(one.text),
                prompt=prompt_of(row.messages) if row and texts else None,
            )
        )
    return letters


def _row(store: ObjectStore, manifest: RunManifest, number: int) -> Row | None:
    """Return a row as it was loaded, None where its shard is gone or damaged."""
    shard, place = divmod(number, manifest.shard_rows)
    try:
        data = store.get(RunPaths(manifest.run).prompts(manifest.fingerprint, shard))
        lines = codec.decompress(data, limit_bytes=_SHARD_LIMIT_BYTES).split(b"\n")
        return build(Row, codec.loads(lines[place]))
    except (ObjectMissingError, ValueError, IndexError):
        return None


def prompt_of(messages: Any) -> str:
    """Return the end of the last user message, as plain text."""
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, dict) and message.get("role") == "user":
            return excerpt(message.get("content"))
    return ""


def excerpt(text: Any) -> str:
    """Return the end of a text, on one line; what is no text is written as JSON."""
    plain = text if isinstance(text, str) else codec.dumps(text).decode()
    line = " ".join(plain[-4 * _TEXT_CHARS :].split())
    return line if len(line) <= _TEXT_CHARS else f"… {line[-_TEXT_CHARS:]}"


def _reason(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_CHARS else f"{line[:_REASON_CHARS]} …"
