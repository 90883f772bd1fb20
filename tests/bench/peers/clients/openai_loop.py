"""The usual asyncio loop: one OpenAI client an engine, a semaphore, results as they come.

Written for this comparison. The output is begun anew at each start: such a loop knows no resume.
"""

from __future__ import annotations

import asyncio

from asking import IN_FLIGHT, RESULTS, ROWS, answer_async


async def main() -> None:
    RESULTS.write_bytes(b"")
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def one(row: int) -> None:
        async with slots:
            await answer_async(row)

    await asyncio.gather(*(one(row) for row in range(ROWS)))


if __name__ == "__main__":
    asyncio.run(main())
