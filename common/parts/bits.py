"""A set of items as a bitmap, in the order of Redis' own: bit k is ``7 - k % 8`` of byte k // 8."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Bits:
    """A set of the numbers ``[0, size)``; one bit each."""

    def __init__(self, size: int, data: bytes | None = None) -> None:
        self.size = size
        self._bytes = bytearray((size + 7) // 8) if data is None else bytearray(data)
        if len(self._bytes) != (size + 7) // 8:
            raise ValueError(f"{len(self._bytes)} bytes are not {size} bits")

    def __contains__(self, item: int) -> bool:
        return bool(self._bytes[item >> 3] & (0x80 >> (item & 7)))

    def __len__(self) -> int:
        return int.from_bytes(self._bytes, "big").bit_count()

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers that are in, in order."""
        for at, byte in enumerate(self._bytes):
            if byte:
                yield from (at * 8 + bit for bit in range(8) if byte & (0x80 >> bit))

    def rank(self, item: int) -> int:
        """Return how many numbers below ``item`` are in."""
        whole = int.from_bytes(self._bytes[: item >> 3], "big").bit_count()
        return whole + sum(k in self for k in range(item & ~7, item))

    def add(self, item: int) -> bool:
        """Put an item in; return whether it was not there. Raises IndexError if out of range."""
        if not 0 <= item < self.size:
            raise IndexError(item)
        if item in self:
            return False
        self._bytes[item >> 3] |= 0x80 >> (item & 7)
        return True

    def add_all(self, items: Iterable[int]) -> None:
        """Put all of ``items`` in. Raises IndexError if one is out of range."""
        for item in items:
            self.add(item)

    def missing(self) -> Iterator[int]:
        """Yield the numbers that are not in, in order."""
        for at, byte in enumerate(self._bytes):
            if byte != 0xFF:
                yield from (k for k in range(at * 8, min(at * 8 + 8, self.size)) if k not in self)

    def to_bytes(self) -> bytes:
        """Return the bitmap."""
        return bytes(self._bytes)
