"""What all tools compared here share: one prompt, one request, one line in the results.

These programs run in a venv of their own (requirements/bench.txt), and know nothing of genq.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

from openai import AsyncOpenAI, OpenAI

ENGINES = os.environ["PEERS_ENGINES"].split()
RESULTS = Path(os.environ["PEERS_RESULTS"])
BROKER = os.environ["PEERS_BROKER"]
ROWS = int(os.environ["PEERS_ROWS"])
IN_FLIGHT = int(os.environ["PEERS_IN_FLIGHT"])
REDELIVER_SECONDS = int(os.environ["PEERS_REDELIVER_SECONDS"])
MAX_TOKENS = 1000


def body(row: int) -> dict:
    messages = [{"role": "user", "content": f"question {row}"}]
    return {"model": "tiny", "messages": messages, "max_tokens": MAX_TOKENS}


def line_of(row: int, text: str) -> bytes:
    return json.dumps({"id": row, "content": text}).encode() + b"\n"


def append(row: int, text: str) -> None:
    """Add a result: one write, at the end of the file, whoever else writes."""
    file = os.open(RESULTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line_of(row, text))
    finally:
        os.close(file)


@cache
def client(engine: str) -> OpenAI:
    return OpenAI(base_url=f"{engine}/v1", api_key="none", max_retries=0)


@cache
def async_client(engine: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{engine}/v1", api_key="none", max_retries=0)


def engine_of(row: int) -> str:
    return ENGINES[row % len(ENGINES)]


def answer(row: int) -> None:
    """The whole task, as Celery, Dramatiq and RQ run it."""
    reply = client(engine_of(row)).chat.completions.create(**body(row))
    append(row, reply.choices[0].message.content)


async def answer_async(row: int) -> None:
    """The whole task, as taskiq runs it."""
    reply = await async_client(engine_of(row)).chat.completions.create(**body(row))
    append(row, reply.choices[0].message.content)
