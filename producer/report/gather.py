"""Everything that a report says, gathered by reading alone: storage first, then Redis if it is up.

Of the parts only a few columns are read, several parts at a time. Redis adds what only it knows:
where open items are, failed tries, waste. Where it is gone, the report says so and is made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from common.build import NewerVersionError, newer
from common.codec import loads
from common.errors import QueueError, VerifyError
from common.losses import Ends
from common.no_such_run import not_in_store
from common.objectstore import ObjectMissingError, RunPaths
from common.parts import codec_for
from common.parts.chain import part_number, read_format
from common.prove import read_manifest
from common.queue.run_state import Runs
from common.ranges import Ranges
from common.redis_client import connect
from producer.report.letters import excerpt, letters_in_redis, prompt_of, stored_letters
from producer.report.relatives import children_of
from producer.report.survey import COLUMNS, Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from common.audit import RunCounts
    from common.ids import RunName
    from common.objectstore import ObjectStat, ObjectStore
    from common.queue.failures import FailureInfo
    from common.records import RunManifest
    from common.settings import Settings
    from producer.report.data import Child
    from producer.report.letters import Letters
    from producer.report.survey import Kept

_PARALLEL = 8
_AHEAD = 16  # parts that are read before they are counted
_SLACK_SECONDS = 3600.0  # by which a worker's clock may be off
_REDIS_FAILURES = 2000  # dead letters that are looked through for examples


@dataclass(frozen=True, slots=True)
class InRedis:
    """What Redis says of the run."""

    counts: RunCounts
    dead_by_class: dict[str, int]
    failures: list[FailureInfo]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was read."""

    manifest: RunManifest
    survey: Survey
    letters: Letters | None  # None: what is dead is not known
    finished: bool
    redis: InRedis | None
    suffix: str | None
    wasted: dict[str, Any]  # what manifest.json of a finished run tells of it, else nothing
    lost: int  # completions that _SUCCESS counts and no part holds
    children: list[Child]
    notes: list[str]


def gather(
    store: ObjectStore,
    run: RunName,
    settings: Settings,
    *,
    texts: bool,
    counted: Callable[[int, int], None],
) -> Gathered:
    """Read all of it; ``texts``: with prompts and answers of the examples.

    ``counted`` is told (parts counted, parts there are) after each part.

    Raises:
        UsageError: storage has no such run.
        StoreError: it could not be asked, or a newer sink wrote a part.
        VerifyError: something that it holds is damaged, or a part was deleted from among others.
    """
    try:
        manifest = read_manifest(store, run)
    except ObjectMissingError as error:
        raise not_in_store(store, run) from error
    paths, notes = RunPaths(run), list[str]()
    ends = Ends(store, [run])  # before the parts are read: what is committed later is no loss
    finished = store.stat(paths.success) is not None
    in_redis = asyncio.run(_ask_redis(settings, manifest, notes))
    suffix = read_format(store, paths)
    survey = _survey(store, manifest, suffix, counted)
    letters: Letters | None = None
    if finished:
        letters = stored_letters(store, manifest, texts=texts)
    elif in_redis is not None:
        dead = in_redis.dead_by_class, in_redis.failures
        letters = letters_in_redis(store, manifest, *dead, texts=texts)
    if texts:
        _add_texts(store, survey)
    return Gathered(
        manifest=manifest,
        survey=survey,
        letters=letters,
        finished=finished,
        redis=in_redis,
        suffix=suffix,
        wasted=_wasted(store, paths) if finished else {},
        lost=ends.lost(run, survey.verdicts.total()),
        children=children_of(store, run),
        notes=notes,
    )


async def _ask_redis(settings: Settings, manifest: RunManifest, notes: list[str]) -> InRedis | None:
    """Return what Redis knows; where it cannot be asked, say so in ``notes``."""
    run = manifest.run
    try:
        async with await connect(settings, name="report") as client:
            runs = Runs(client, settings.limits())
            info = await runs.get(run)
            if info is None or info.fingerprint != manifest.fingerprint:
                which = "does not have this run" if info is None else "has other rows by this name"
                notes.append(f"Redis {which}: all numbers are from storage.")
                return None
            counts = await runs.sample(run)
            if not counts.dead:
                return InRedis(counts, {}, [])
            by_class = await runs.failures_by_class(run)
            return InRedis(counts, by_class, await runs.failures(run, limit=_REDIS_FAILURES))
    except QueueError as error:
        notes.append(f"Redis could not be asked: {error.what} All numbers are from storage.")
        return None


def _survey(
    store: ObjectStore,
    manifest: RunManifest,
    suffix: str | None,
    counted: Callable[[int, int], None],
) -> Survey:
    survey = Survey(
        earliest=_unix(manifest.created) - _SLACK_SECONDS,
        latest=datetime.now(UTC).timestamp() + _SLACK_SECONDS,
    )
    parts = [
        stat
        for stat in store.list(RunPaths(manifest.run).data_prefix)
        if (named := part_number(RunPaths(manifest.run), stat.key)) and named[1] == suffix
    ]
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for number, (stat, records) in enumerate(_read_all(pool, store, parts), start=1):
            try:
                survey.take(records, stat.key)
            except NewerVersionError as error:
                raise newer(f"{store.url}/{stat.key}", error) from error
            except (ValueError, KeyError, TypeError) as error:
                raise _damaged(store, stat.key, error) from error
            counted(number, len(parts))
    return survey


def _unix(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _read_all(
    pool: ThreadPoolExecutor, store: ObjectStore, parts: Sequence[ObjectStat]
) -> Iterator[tuple[ObjectStat, list[dict[str, Any]]]]:
    """Yield the parts' columns in order, a few parts read ahead."""
    under_way = deque(
        (stat, pool.submit(read_part, store, stat, COLUMNS)) for stat in parts[:_AHEAD]
    )
    for at in range(len(parts)):
        stat, reading = under_way.popleft()
        if at + _AHEAD < len(parts):
            later = parts[at + _AHEAD]
            under_way.append((later, pool.submit(read_part, store, later, COLUMNS)))
        yield stat, reading.result()


def read_part(store: ObjectStore, stat: ObjectStat, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return some columns of a part.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: the part is damaged.
    """
    suffix = stat.key.rpartition("/")[2].partition(".")[2]
    try:
        source = cast("BinaryIO", Ranges(store, stat))
        return list(codec_for(suffix).open(source).rows(names))
    except ValueError as error:
        raise _damaged(store, stat.key, error) from error


def _damaged(store: ObjectStore, key: str, error: Exception) -> VerifyError:
    run = key.partition("/")[0]
    return VerifyError(
        f"{store.url}/{key} is damaged.",
        why=str(error),
        fix=f"gen-producer verify {run}    lists what is affected; nothing was changed.",
    )


def _add_texts(store: ObjectStore, survey: Survey) -> None:
    """Put prompt and answer to the examples: the few parts that they lie in are read again."""
    wanted: dict[str, list[Kept]] = {}
    for kept in (one for some in survey.examples.values() for one in some):
        wanted.setdefault(kept.part, []).append(kept)
    for part, some in wanted.items():
        stat = store.stat(part)
        if stat is None:
            continue
        rows = {row["k"]: row for row in read_part(store, stat, ("k", "messages", "content"))}
        for kept in some:
            row = rows[kept.example.k]
            example = replace(
                kept.example, prompt=prompt_of(row["messages"]), answer=excerpt(row["content"])
            )
            examples = survey.examples[kept.example.verdict]
            examples[examples.index(kept)] = replace(kept, example=example)


def _wasted(store: ObjectStore, paths: RunPaths) -> dict[str, Any]:
    try:
        found = loads(store.get(paths.manifest)).get("waste")
    except (ObjectMissingError, ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}
