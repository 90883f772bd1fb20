"""What Redis knows of one item: where it is, who has it, what became of its tries. Reads alone.

Promised: one script tells it all at one moment, and writes nothing. Of a result that waits for the
sink two more reads tell its figures. Not promised: the place in the queue where retries are mixed
among ids in the middle of a long one, since a list cannot be searched there without holding the
server up.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from common.keys import RunKeys
from common.queue.failures import decode_reason
from common.queue.results import GROUP
from common.queue.run_facts import texts
from common.queue.scripts import ANY_EPOCH, Scripts, explain

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis.asyncio

    from common.ids import Item, RunName

NEAR_ITEMS = 5000  # ids at each end of the queue that are looked through
_ENTRIES = 64  # of the stream that are looked through for one result
_SLACK_MS = 2  # between an item's end and its entry's time: both are of one script


@dataclass(frozen=True, slots=True)
class FailedTry:
    """One try that the item spoiled, and why. Engine faults, which charge nobody, leave none."""

    at: float  # unix s
    worker: str
    text: str


@dataclass(frozen=True, slots=True)
class WaitingResult:
    """A result in the stream, on its way to the sink."""

    entry: str
    verdict: str
    completion_tokens: int
    payload: bytes
    sink: str = ""  # the sink that has read it; "": none yet
    read_seconds_ago: float | None = None
    reads: int = 0


@dataclass(frozen=True, slots=True)
class ItemState:
    """One item at one moment. Times are unix seconds by Redis' clock; None: there is none."""

    run: str
    item: int
    run_state: str
    place: str  # queued | taking | leased | waiting | dead | generated | committed | ...
    at: float
    ahead: int | None = None  # ids before it in the queue
    queue_length: int | None = None
    due: float | None = None  # when its retry is queued
    holder: str = ""  # who leases it
    leased_until: float | None = None
    taken_from: str = ""  # who had it before the reaper took it back, until it is handed out
    worker: str = ""  # who had it last, as far as RQ's record still tells
    started: float | None = None  # when it was last handed out
    ended: float | None = None  # when its result was taken, or it was given up
    attempts_used: int = 0
    attempts: int = 0  # that it has
    deliveries_unfinished: int = 0  # hand-outs that ended without a verdict
    engine_deaths: int = 0
    dead_class: str = ""
    watched: str | None = None  # by the canary: the class of its first finished try, "" before
    kept_turns_bytes: int = 0
    failures: list[FailedTry] = field(default_factory=list)  # the last ten, the oldest first
    result: WaitingResult | None = None


async def read_item(redis: redis.asyncio.Redis, run: RunName, item: Item) -> ItemState:
    """Return what is known of an item.

    Raises:
        EpochError: Redis does not have the run.
        QueueError: the server refused, or could not be reached; or the run has no such item.
    """
    scripts = Scripts(redis, run, ANY_EPOCH)
    told, job, records = await scripts.call("trace", item, NEAR_ITEMS)
    state = _state(run, item, texts(told), _texts(job), records)
    if state.place != "generated":
        return state
    try:
        found = await _result(redis, run, state)
    except (RedisError, OSError) as error:
        raise explain(error, run, "reading") from error
    return replace(state, result=found)


def _state(
    run: RunName, item: Item, told: dict[str, str], job: dict[str, str], records: Sequence[Any]
) -> ItemState:
    attempts = int(told["max_attempts"])
    holder = told.get("holder", "")
    return ItemState(
        run=run,
        item=item,
        run_state=told["state"],
        place=_place(told),
        at=int(told["now"]) / 1000,
        ahead=_whole(told.get("ahead")),
        queue_length=_whole(told.get("queue_length")),
        due=_number(told.get("due")),
        holder=holder.partition(" ")[2],
        leased_until=float(told["deadline"]) / 1000 if "deadline" in told else None,
        taken_from=told.get("expired", "").partition(" ")[2],
        worker=job.get("worker_name", ""),
        started=_time(job.get("started_at")),
        ended=_time(job.get("ended_at")),
        attempts_used=attempts - int(job.get("retries_left") or attempts),
        attempts=attempts,
        deliveries_unfinished=int(told.get("deliveries", 0)),
        engine_deaths=int(told.get("deaths", 0)),
        dead_class=told.get("class", ""),
        watched=told.get("watched"),
        kept_turns_bytes=int(told.get("turns_bytes", 0)),
        failures=[_failed(record) for record in reversed(records)],
    )


def _place(told: dict[str, str]) -> str:
    """Return where an item is; the first that holds."""
    rules = (
        (told["committed"] == "1", "committed"),
        (told["done"] == "1", "generated"),
        ("holder" in told, "leased"),
        ("due" in told, "waiting"),
        ("failed" in told, "dead"),
        ("stock" in told or "taking" in told, "taking"),
        ("ahead" in told, "queued"),
        (told["state"] == "cancelled", "dropped"),
        (told["loaded"] == "0", "not loaded"),
        (int(told.get("queue_length", 0)) > 2 * NEAR_ITEMS, "queued"),
        (True, "nowhere"),
    )
    return next(place for holds, place in rules if holds)


async def _result(
    redis: redis.asyncio.Redis, run: RunName, state: ItemState
) -> WaitingResult | None:
    """Return an item's entry: looked for at the time of its end, and among the oldest."""
    stream = RunKeys(run).stream
    client: Any = redis  # its types allow for answers in text; ours are bytes
    spans = [("-", "+")]
    if state.ended is not None:
        ended_ms = int(state.ended * 1000)
        spans.insert(0, (str(ended_ms - _SLACK_MS), str(ended_ms + _SLACK_MS)))
    for first, last in spans:
        for entry, fields in await client.xrange(stream, first, last, count=_ENTRIES):
            if int(fields[b"n"]) == state.item:
                reading: Any = await client.xpending_range(stream, GROUP, entry, entry, 1)
                return _waiting(entry.decode(), fields, reading)
    return None


def _waiting(
    entry: str, fields: dict[bytes, bytes], reading: list[dict[str, Any]]
) -> WaitingResult:
    read = reading[0] if reading else {}
    idle = read.get("time_since_delivered")
    return WaitingResult(
        entry=entry,
        verdict=fields[b"v"].decode(),
        completion_tokens=int(fields[b"t"]),
        payload=fields[b"p"],
        sink=bytes(read.get("consumer", b"")).decode(),
        read_seconds_ago=None if idle is None else idle / 1000,
        reads=int(read.get("times_delivered", 0)),
    )


def _failed(record: Any) -> FailedTry:
    entry, flat = record
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return FailedTry(
        at=int(entry.split(b"-")[0]) / 1000,
        worker=fields.get(b"worker_name", b"").decode(),
        text=decode_reason(fields.get(b"exc_string", b"")),
    )


def _texts(flat: Sequence[bytes]) -> dict[str, str]:
    parts = [part.decode("utf-8", "replace") for part in flat]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _time(text: str | None) -> float | None:
    """Return a time as RQ writes it, as unix seconds."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None
