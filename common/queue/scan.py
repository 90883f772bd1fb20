"""A walk over all places of a run, for repair: which items are anywhere?

The run goes on meanwhile. Places are read in an order, and the queue from its tail to its head,
such that an item which moves as items do is seen at least once: ids leave the queue at its head,
so those not read yet only come nearer; the places that an item may move to are read last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common.ids import RunName, item_of_job
from common.keys import RunKeys

if TYPE_CHECKING:
    from collections.abc import Iterable

    import redis.asyncio

PAGE = 10_000
OVERLAP = 1_000  # ids put back at the head while a page is fetched move the others up


async def open_bitmap(redis: redis.asyncio.Redis, run: RunName, items: int) -> bytes:
    """Return a bitmap of the items that are in some place; the top bit of a byte is first."""
    keys = RunKeys(run)
    bits = bytearray((items + 7) // 8)
    client: Any = redis  # its types allow for answers in text; ours are bytes

    def mark(ids: Iterable[bytes]) -> None:
        for job in ids:
            item = item_of_job(run, job.decode().partition(":")[0])
            if item is not None and item < items:
                bits[item // 8] |= 0x80 >> item % 8

    async def mark_sets() -> None:
        for key in (keys.scheduled, keys.wip, keys.failed):
            cursor, first = 0, True
            while cursor or first:
                first = False
                cursor, found = await client.zscan(key, cursor, count=1000)
                mark(member for member, _ in found)

    await mark_sets()
    end = await client.llen(keys.queue)
    while end > 0:
        start = max(0, end - PAGE)
        mark(await client.lrange(keys.queue, start, end + OVERLAP))
        end = start
    mark(await client.lrange(keys.intermediate, 0, -1))
    await mark_sets()
    for place, byte in enumerate((await client.get(keys.done) or b"")[: len(bits)]):
        bits[place] |= byte
    return bytes(bits)


def has_bit(bits: bytes, item: int) -> bool:
    """Tell whether a bitmap has an item; it may be shorter than the run."""
    byte = bits[item // 8] if item // 8 < len(bits) else 0
    return bool(byte & (0x80 >> item % 8))


def bits_without(bits: bytes, others: bytes) -> bytes:
    """Return the items that the first bitmap has and the second has not."""
    size = len(bits)
    taken = int.from_bytes(others[:size].ljust(size, b"\0"), "big")
    return (int.from_bytes(bits, "big") & ~taken).to_bytes(size, "big")


def set_bits(bits: bytes) -> list[int]:
    """Return the items that a bitmap has, in order."""
    return [
        place * 8 + bit
        for place, byte in enumerate(bits)
        if byte
        for bit in range(8)
        if byte & (0x80 >> bit)
    ]
