"""A loop as trainers' regeneration scripts have it: threads, and a new client a conversation.

Written for this comparison. Resumed as such scripts do it: as many rows are skipped at the head of
the input as there are lines in the output. Results go through an ordinary buffered file.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from asking import ENGINES, IN_FLIGHT, RESULTS, ROWS, body, engine_of, line_of
from openai import OpenAI


def converse(row: int) -> tuple[int, str]:
    client = OpenAI(base_url=f"{engine_of(row)}/v1", api_key="none", max_retries=0)
    reply = client.chat.completions.create(**body(row))
    return row, reply.choices[0].message.content


def main() -> None:
    done = len(RESULTS.read_bytes().splitlines()) if RESULTS.exists() else 0
    rows = iter(range(done, ROWS))
    waiting = {engine: set() for engine in ENGINES}
    with RESULTS.open("ab") as output, ThreadPoolExecutor(IN_FLIGHT) as threads:
        for row in rows:
            own = waiting[engine_of(row)]
            if len(own) >= IN_FLIGHT // len(ENGINES):
                finished, left = wait(own, return_when=FIRST_COMPLETED)
                for one in finished:
                    output.write(line_of(*one.result()))
                own.intersection_update(left)
            own.add(threads.submit(converse, row))
        for own in waiting.values():
            for one in own:
                output.write(line_of(*one.result()))


if __name__ == "__main__":
    main()
