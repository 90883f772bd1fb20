"""A stand-in engine that also speaks OpenAI's chat API, and notes each request.

``python -m tests.bench.peers.engine LOG --port P --model FOLDER ...``: the stand-in of
tests/support with one more path. Both paths feed the same scheduler, so an answer takes as long by
either. Of each request a line goes to the log when it comes and when it was answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from tests.support import fake_sglang
from tests.support.captured import answer_of
from tests.support.fake_scheduler import Job

if TYPE_CHECKING:
    import argparse


class PeerServer(fake_sglang.FakeServer):
    def __init__(self, args: argparse.Namespace, log: Path) -> None:
        super().__init__(args)
        self._log = log.open("a", buffering=1)

    def note(self, what: str) -> None:
        self._log.write(f"{what} {time.time():.6f}\n")

    async def generate(self, request: web.Request) -> web.StreamResponse:
        self.note("asked")
        response = await super().generate(request)
        self.note("answered")
        return response

    async def chat(self, request: web.Request) -> web.Response:
        self.note("asked")
        body = await request.json()
        text = "".join(
            f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in body["messages"]
        )
        job = Job(
            rid=secrets.token_hex(16),
            input_ids=list(text.encode()),
            max_new_tokens=int(body["max_tokens"]),
            seed=0,
            ignore_eos=False,
            stop=(),
        )
        self.scheduler.add(job)
        await self.finished(request, job)
        answer = answer_of(job)
        self.note("answered")
        message = {"role": "assistant", "content": answer.get("text") or ""}
        return web.json_response(
            {
                "id": job.rid,
                "object": "chat.completion",
                "created": int(time.time()),
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            }
        )

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/v1/chat/completions", self.chat)
        return app


def main() -> None:
    log, *rest = sys.argv[1:]
    args = fake_sglang.parse(rest)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(PeerServer(args, Path(log)).serve())


if __name__ == "__main__":
    main()
