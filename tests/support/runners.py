"""One item through the runner, with an engine's dialect and a tokenizer that live in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson

from common.codec import decompress, loads
from common.ids import Epoch, Item, RunName, Token, WorkerName
from common.records import Leased, Row, RunInfo, RunManifest, RunSettings
from consumer.engine.api import Answer, EngineFacts, Reply
from consumer.engine.states import EngineState
from consumer.generation.client import Client
from consumer.generation.render import Prompts
from consumer.generation.runner import Ready, Runner
from consumer.leases.catalogue import ActiveRun
from consumer.leases.fetcher import Work
from consumer.leases.keeper import Held

FACTS = EngineFacts("sglang", "0.0", "m", "", 300, 200, 8, None)
RUN = RunName("r")


class Dialect:
    """An engine's dialect over replies that a test has scripted, in memory."""

    name = "sglang"

    def __init__(self, *replies) -> None:
        self.replies = list(replies)
        self.bodies: list[dict] = []
        self.aborted: list[str] = []

    def generate(self, request):
        return "/generate", {"rid": request.rid, "ids": list(request.input_ids)}

    def read(self, body):
        return Answer(**orjson.loads(body))

    async def abort(self, _http, rid):
        self.aborted.append(rid)

    async def get(self, _path, _seconds):
        return Reply(404, b"")

    async def post(self, _path, body, _seconds):
        self.bodies.append(body)
        reply = self.replies.pop(0)
        if callable(reply):
            return await reply()
        if isinstance(reply, Reply):
            return reply
        text, reason = reply
        answer = {
            "rid": body["rid"],
            "output_ids": list(text.encode()),
            "text": text,
            "finish_reason": reason,
            "prompt_tokens": len(body["ids"]),
            "completion_tokens": len(text),
            "cached_tokens": 0,
            "detail": "",
        }
        return Reply(200, orjson.dumps(answer))


class Bytes:
    """A tokenizer of bytes, whose template refuses one word."""

    async def load(self):
        pass

    async def render(self, messages, *, thinking):
        text = "|".join(f"{m['role']}:{m['content']}" for m in messages)
        if "unspeakable" in text:
            raise ValueError("no such role")
        return list(text.encode())

    async def decode(self, ids):
        return bytes(ids).decode(errors="replace")

    async def encode(self, text):
        return list(text.encode())

    async def template(self):
        return ""


class Kept:
    """A queue that keeps turns in memory."""

    def __init__(self, packed: bytes = b"") -> None:
        self.packed = packed

    async def saved_turns(self, _worker, _item, _token):
        return self.packed

    async def save_turns(self, _worker, _item, _token, packed):
        self.packed = packed
        return True


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def work(*messages: str | dict, deaths: int = 0, attempt: int = 1, queue=None, **settings) -> Work:
    """A leased item whose row says ``messages``; plain texts are the user's."""
    run_settings = RunSettings(model="m", model_fingerprint="", **settings)
    info = RunInfo(RUN, Epoch("e"), "open", 0, 1, "f", "m", "", 0.0)
    manifest = RunManifest(RUN, run_settings, "f", 1, 1, [], "", "", "")
    leased = Leased(Item(3), Token("t"), attempt, attempt, deaths)
    said = [user(one) if isinstance(one, str) else one for one in messages]
    row = Row(i=3, messages=said, id="mine", metadata={"a": 1})
    return Work(ActiveRun(info, manifest, None), Held(info, leased, queue or Kept()), row, 0)


def build(*replies):
    dialect = Dialect(*replies)
    serving = SimpleNamespace(state=EngineState.READY, incarnation=1, http=dialect)
    client = Client(dialect, serving)
    return dialect, client, Runner(dialect, client, WorkerName("w"))


async def run(item: Work, *replies):
    _, _, runner = build(*replies)
    return await runner.run(item, Ready(FACTS, Prompts(Bytes())))


def completion(ended) -> dict:
    return loads(decompress(ended.finished.payload, limit_bytes=1 << 20))
