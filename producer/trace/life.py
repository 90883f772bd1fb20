"""The life of one item, gathered: what Redis says, what storage holds, and its child runs'."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from common.codec import decompress, loads
from common.errors import QueueError
from common.family import children_of, parent_items
from common.ids import Item, RunName, job_id, row_of
from common.objectstore import RunPaths
from common.queue.run_state import Runs
from common.records import Verdict
from common.redis_client import connect
from producer.manifest import find_manifest
from producer.trace.names import row_at
from producer.trace.places import Finder, find_letter, read_completion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from common.objectstore import ObjectStore
    from common.queue.item_state import ItemState
    from common.records import RunManifest
    from common.settings import Settings
    from producer.trace.places import Place

_RESULT_LIMIT_BYTES = 1 << 30
_TEXTS = ("messages", "reasoning_content", "content", "turns", "sampling", "metadata")


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion's figures; where it is stored, if it is."""

    part: int | None  # None: it waits in Redis
    key: str
    position: int | None  # in the part, from 0
    verdict: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    seed: int
    attempt: int
    worker: str
    started: str
    seconds: float
    model: str
    engine: str
    texts: dict[str, Any] | None = None  # only where they were asked for


@dataclass(frozen=True, slots=True)
class Letter:
    """Why an item was given up, as failed.jsonl has it."""

    verdict: str
    text: str
    worker: str
    at: str


@dataclass(slots=True)
class Life:
    """One item of one run."""

    run: RunName
    item: Item
    row: int  # 1 is the first
    sample: int
    row_id: str | None
    reason: str = ""  # of a child's: the class that its parent's completion has
    parent: tuple[str, int] | None = None  # of a child run: the run and item that this one redoes
    state: ItemState | None = None  # None: Redis does not know it
    answer: Answer | None = None
    letter: Letter | None = None
    counts: bool = False  # of all completions of the family: the one that export and training take
    finished: bool = False  # the run has its _SUCCESS
    children: list[Life] = field(default_factory=list)

    @property
    def job(self) -> str:
        """The item's RQ job id."""
        return job_id(self.run, self.item)

    def family(self) -> Iterator[Life]:
        """Yield this one and its descendants, parents before children."""
        yield self
        for child in self.children:
            yield from child.family()


@dataclass(frozen=True, slots=True)
class Wish:
    """What to read of an item, and whom to tell (indexes read, parts there are) meanwhile."""

    texts: bool
    asked: Callable[[int, int], None]


def gather(
    store: ObjectStore, settings: Settings, manifest: RunManifest, item: Item, wish: Wish
) -> tuple[Life, list[str]]:
    """Return an item's life, and notes on what could not be asked.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: what it holds is damaged.
    """
    manifests: dict[RunName, RunManifest] = {}
    life = _tree(store, manifest, item, manifests)
    notes: list[str] = []
    asyncio.run(_ask_redis(store.url, settings, life, manifests, notes))
    for one in life.family():
        _ask_store(store, manifests[one.run], one, wish)
    members = list(life.family())
    best = next((one for one in members[1:] if _ok(one)), life)
    best.counts = best.answer is not None and best.answer.part is not None
    if manifest.parent:
        life.parent = _parent(store, manifest, item)
    return life, notes


def _ok(life: Life) -> bool:
    answer = life.answer
    return answer is not None and answer.part is not None and answer.verdict == Verdict.OK


def _tree(
    store: ObjectStore,
    manifest: RunManifest,
    item: Item,
    manifests: dict[RunName, RunManifest],
    reason: str = "",
) -> Life:
    manifests[manifest.run] = manifest
    number, sample = row_of(item, manifest.settings.samples)
    row = row_at(store, manifest, number)
    life = Life(manifest.run, item, number + 1, sample, row.id if row else None, reason)
    for child in children_of(store, manifest):
        if child.run in manifests:
            continue
        redone = parent_items(child, manifest.items)
        if item in redone:
            its = Item(redone.rank(item))
            life.children.append(_tree(store, child, its, manifests, child.parent_reason))
    return life


def _parent(store: ObjectStore, manifest: RunManifest, item: Item) -> tuple[str, int] | None:
    parent = find_manifest(store, RunName(manifest.parent))
    if parent is None:
        return None
    for n, its in enumerate(parent_items(manifest, parent.items)):
        if n == item:
            return manifest.parent, its
    return None


async def _ask_redis(
    store: str,
    settings: Settings,
    life: Life,
    manifests: dict[RunName, RunManifest],
    notes: list[str],
) -> None:
    """Put to each what Redis knows; where it cannot be asked, say so."""
    try:
        async with await connect(settings, name="trace") as client:
            runs = Runs(client, settings.limits())
            for one in life.family():
                info = await runs.get(one.run)
                if info is None:
                    notes.append(f"Redis does not have run {one.run}: this is from storage.")
                elif info.fingerprint != manifests[one.run].fingerprint:
                    notes.append(f"Redis has other rows as run {one.run}: this is from storage.")
                elif info.store not in ("", store):
                    notes.append(f"Redis has run {one.run} of {info.store}: this is from storage.")
                else:
                    one.state = await runs.trace(one.run, one.item)
    except QueueError as error:
        notes.append(f"Redis could not be asked: {error.what} This is from storage.")


def _ask_store(store: ObjectStore, manifest: RunManifest, one: Life, wish: Wish) -> None:
    one.finished = store.stat(RunPaths(manifest.run).success) is not None
    state = one.state
    if state is not None and state.result is not None:
        one.answer = _waiting(state.result.payload, texts=wish.texts)
    if state is not None and state.place not in ("committed", "generated"):
        return  # every committed item is known to Redis, which was loaded from storage
    place = Finder(store, manifest, wish.asked).find(one.item)
    if place is not None:
        record = read_completion(store, place, one.item, texts=wish.texts)
        one.answer = _answer(record, place, texts=wish.texts) if record else one.answer
    elif state is None:
        letter = find_letter(store, manifest, one.item)
        if letter is not None:
            told = (str(letter.get(name, "")) for name in ("verdict", "text", "worker", "at"))
            one.letter = Letter(*told)


def _waiting(payload: bytes, *, texts: bool) -> Answer | None:
    try:
        record = loads(decompress(payload, limit_bytes=_RESULT_LIMIT_BYTES))
        return _answer(record, None, texts=texts)
    except (ValueError, KeyError, TypeError, AttributeError):  # a newer version's, perhaps
        return None


def _answer(record: dict[str, Any], place: Place | None, *, texts: bool) -> Answer:
    usage = record["usage"]
    return Answer(
        part=place.part if place else None,
        key=place.key if place else "",
        position=place.position if place else None,
        verdict=record["verdict"],
        finish_reason=record["finish_reason"],
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        cached_tokens=usage.get("cached_tokens", 0),
        reasoning_tokens=usage.get("reasoning_tokens", 0),
        seed=record["seed"],
        attempt=record["attempt"],
        worker=record["worker"],
        started=record["started"],
        seconds=record["seconds"],
        model=record["model"],
        engine=record["engine"],
        texts={name: _parsed(name, record.get(name)) for name in _TEXTS} if texts else None,
    )


def _parsed(name: str, value: Any) -> Any:
    """Return a column's value; parts have some of them as JSON."""
    if name in ("turns", "sampling", "metadata") and isinstance(value, str):
        return loads(value or "null")
    return value
