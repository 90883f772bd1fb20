"""A stand-in for SGLang: a real HTTP server that speaks the captured protocol, with faults.

``python -m tests.support.fake_sglang --port 31000 --model FOLDER`` serves in the foreground; under
the supervisor it is started by ``FakeSglang``, and for a test of its own by ``running_fake`` of
:mod:`tests.support.fake_engine`. Faults are set by ``POST /fake/faults`` with fields of
:class:`tests.support.fake_scheduler.Faults`; ``GET /fake/state`` tells what happened.

What is not imitated: streaming, batches, text prompts, and the texts of most log lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from aiohttp import web

from consumer.engine.guard import KEY_VARIABLE
from tests.support.captured import answer_of, captured
from tests.support.fake_flags import parse
from tests.support.fake_metrics import metrics_page
from tests.support.fake_scheduler import Faults, Job, Scheduler
from tests.support.tiny_tokenizer import CONTEXT

if TYPE_CHECKING:
    import argparse

SAMPLING_FIELDS = {
    *("max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k"),
    *("min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens"),
    *("n", "json_schema", "regex", "ebnf", "structural_tag", "ignore_eos", "skip_special_tokens"),
    *("spaces_between_special_tokens", "no_stop_trim", "stream_interval", "logit_bias"),
    *("sampling_seed", "custom_params"),
}


class FakeServer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.key = os.environ.get(KEY_VARIABLE, "")
        self.scheduler = Scheduler(
            max_running=args.running,
            token_seconds=args.token_seconds,
            prefill_seconds=args.prefill_seconds,
            answer_tokens=args.answer_tokens,
            request_seconds=args.request_seconds,
            prefix_chunk=0 if args.disable_radix_cache else args.prefix_chunk,
        )
        self.requests = 0
        self.refused = 0
        self.health_checks = 0
        self.ready = False
        self.draining = False
        self.last_answer: bytes = b""

    @property
    def pool_tokens(self) -> int:
        return int(self.scheduler.faults.token_pool or self.args.max_total_tokens)

    # --- the protocol ---

    async def health(self, _: web.Request) -> web.Response:
        self.health_checks += 1
        if self.scheduler.faults.health_status:
            return web.Response(status=self.scheduler.faults.health_status)
        return web.Response(status=200 if self.ready and not self.draining else 503)

    async def server_info(self, _: web.Request) -> web.Response:
        info = captured("server_info")
        info |= {
            "model_path": self.args.model,
            "tokenizer_path": self.args.model,
            "served_model_name": self.args.model,
            "port": self.args.port,
            "context_length": self.args.context_length,
            "max_total_num_tokens": self.pool_tokens,
            "max_running_requests": self.args.max_running_requests,
            "mem_fraction_static": self.args.mem_fraction_static,
            "enable_deterministic_inference": self.args.enable_deterministic_inference,
        }
        effective = {"effective_max_running_requests_per_dp": self.args.running}
        if self.args.max_mamba_cache_size is not None:
            effective["max_mamba_cache_size"] = self.args.max_mamba_cache_size
        info["internal_states"][0] |= effective
        info["disable_radix_cache"] = self.args.disable_radix_cache
        return web.json_response(info)

    async def model_info(self, _: web.Request) -> web.Response:
        return web.json_response(captured("model_info") | {"model_path": self.args.model})

    async def models(self, _: web.Request) -> web.Response:
        answer = captured("models")
        answer["data"][0]["max_model_len"] = self.args.context_length or CONTEXT
        return web.json_response(answer)

    async def loads(self, _: web.Request) -> web.Response:
        answer = captured("loads")
        scheduler = self.scheduler
        tokens = sum(len(job.input_ids) + len(job.output_ids) for job in scheduler.running)
        answer["loads"][0] |= {
            "num_running_reqs": len(scheduler.running),
            "num_waiting_reqs": len(scheduler.waiting),
            "num_used_tokens": tokens,
            "max_total_num_tokens": self.pool_tokens,
            "max_running_requests": self.args.running,
            "token_usage": round(tokens / self.pool_tokens, 4),
            "total_prefill_uncached_tokens": scheduler.prefilled,
            "decode_moments": [scheduler.steps, scheduler.decoded, 0.0, 0.0, 0.0, 0.0],
        }
        back = sum(job.retractions > 0 for job in scheduler.waiting)
        answer["loads"][0]["queues"] |= {"waiting": len(scheduler.waiting), "retracted": back}
        return web.json_response(answer)

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=metrics_page(self.scheduler, self.args.model))

    async def abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.scheduler.abort("" if body.get("abort_all") else body["rid"])
        return web.Response()

    async def flush(self, _: web.Request) -> web.Response:
        if self.scheduler.flush():
            return web.Response(text=captured("flush_idle"))
        return web.Response(status=400, text="Flush cache failed.\n")

    async def generate(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        faults = self.scheduler.faults
        if self.requests == self.args.hang_after:
            faults.hang = True
        if faults.crash_on_request:
            faults.crash_on_request -= 1
            if not faults.crash_on_request:
                die(faults.crash_words, faults.crash_code)
        if faults.fail_fast:
            return web.Response(status=500, text="Internal Server Error")
        if faults.storm_status:
            status = faults.storm_status
            faults.storm_count -= 1
            if not faults.storm_count:
                faults.storm_status = 0
            body = captured("queue_full") | {"code": status, "type": str(status)}
            return web.json_response(body, status=status)
        try:
            job = self.job(await request.json())
        except json.JSONDecodeError:
            return web.json_response(captured("bad_json"), status=400)
        except web.HTTPException as refusal:
            return web.Response(
                status=refusal.status, text=refusal.text, content_type=refusal.content_type
            )
        self.scheduler.add(job)
        await self.finished(request, job)
        return await self.deliver(request, job)

    async def finished(self, request: web.Request, job: Job) -> None:
        while not job.done.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(job.done.wait(), self.args.client_look_seconds)
            if request.transport is None and not job.done.is_set():
                self.scheduler.abort(job.rid)

    def job(self, body: dict[str, Any]) -> Job:
        params = body.get("sampling_params") or {}
        if unknown := set(params) - SAMPLING_FIELDS:
            print(f"TypeError: Unexpected keyword argument {unknown.pop()!r}", flush=True)
            raise web.HTTPInternalServerError(text="Internal Server Error")
        ids = body.get("input_ids")
        if ids is None:
            raise bad(captured("bad_no_input"))
        if not ids:
            raise bad(captured("bad_empty_ids"))
        if float(params.get("temperature", 1.0)) < 0:
            raise bad(captured("bad_temperature"))
        limit = self.args.context_length or CONTEXT
        wanted = params.get("max_new_tokens", 128)
        if len(ids) >= limit:
            text = f"The input ({len(ids)} tokens) is longer than the model's context length"
            raise bad({"error": {"message": f"{text} ({limit} tokens)."}})
        if len(ids) + wanted > limit:
            text = f"Requested token count exceeds the model's maximum context length of {limit}"
            raise bad({"error": {"message": f"{text} tokens."}})
        if not all(0 <= i < self.args.vocab_size for i in ids):
            die("torch.AcceleratorError: CUDA error: device-side assert triggered", 137)
        self.heed(bytes(i for i in ids if i < 256).decode(errors="replace"))
        rid = body.get("rid") or secrets.token_hex(16)
        if any(job.rid == rid for job in self.scheduler.jobs):
            raise bad({"error": {"message": f"Duplicate request ID detected: {rid}"}})
        self.refuse_beyond_the_limit()
        stop = params.get("stop") or ()
        return Job(
            rid=rid,
            input_ids=ids,
            max_new_tokens=wanted,
            seed=params.get("sampling_seed", 0),
            ignore_eos=bool(params.get("ignore_eos")),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
        )

    def refuse_beyond_the_limit(self) -> None:
        faults = self.scheduler.faults
        limit = faults.queue_limit or self.args.max_queued_requests
        if limit and len(self.scheduler.waiting) >= limit:
            self.refused += 1
            status = faults.queue_status
            answer = captured("queue_full") | {"code": status, "type": str(status)}
            kind = web.HTTPTooManyRequests if status == 429 else web.HTTPServiceUnavailable
            raise kind(text=json.dumps(answer), content_type="application/json")

    def heed(self, text: str) -> None:
        faults = self.scheduler.faults
        if faults.kill_text and faults.kill_text in text:
            die(faults.crash_words, faults.crash_code)
        if faults.refuse_text and faults.refuse_text in text:
            raise bad({"error": {"message": "this prompt cannot be served"}})

    async def deliver(self, request: web.Request, job: Job) -> web.StreamResponse:
        faults = self.scheduler.faults
        assert job.finish is not None
        if (status := job.finish.get("status_code")) is not None:
            words = {"message": job.finish["message"], "code": status, "type": str(status)}
            return web.json_response(captured("queue_full") | words, status=status)
        if faults.abort_answers and job.finish["type"] != "abort":
            faults.abort_answers -= 1
            job.finish = {"type": "abort", "message": "Aborted", "status_code": None}
        body = json.dumps(answer_of(job)).encode()
        kind = faults.answer
        if kind and faults.answer_count:
            faults.answer_count -= 1
            if not faults.answer_count:
                faults.answer = ""
        previous, self.last_answer = self.last_answer, body
        if kind == "cut_body":
            response = web.StreamResponse(headers={"Content-Length": str(len(body))})
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
            assert request.transport is not None
            request.transport.abort()
            return response
        page = b"<html><body>502 Bad Gateway</body></html>"
        spoilt = {
            "truncated": body[: len(body) // 2],
            "html": page,
            "not_json": b"{{{",
            "empty": b"",
            "swapped": previous or json.dumps(answer_of(job, rid="f" * 32)).encode(),
            "no_meta": b'{"text": "hello"}',
            "error": b'{"error": {"message": "something broke"}}',
        }.get(kind, body)
        mime = "text/html" if kind == "html" else "application/json"
        return web.Response(body=spoilt, content_type=mime)

    # --- control ---

    async def set_faults(self, request: web.Request) -> web.Response:
        for name, value in (await request.json()).items():
            assert name in {field.name for field in dataclasses.fields(Faults)}, name
            setattr(self.scheduler.faults, name, value)
        return web.json_response(dataclasses.asdict(self.scheduler.faults))

    async def state(self, _: web.Request) -> web.Response:
        scheduler = self.scheduler
        return web.json_response(
            {
                "requests": self.requests,
                "refused": self.refused,
                "health_checks": self.health_checks,
                "running": [job.rid for job in scheduler.running],
                "waiting": [job.rid for job in scheduler.waiting],
                "finished": scheduler.finished,
                "decoded": scheduler.decoded,
                "steps": scheduler.steps,
                "retracted": scheduler.pool.retracted,
                "most_jobs": scheduler.most_jobs,
                "aborted": scheduler.aborted,
            }
        )

    # --- life ---

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.authorise], client_max_size=1 << 28)
        get, post = app.router.add_get, app.router.add_post
        for path in ("/health", "/health_generate", "/ping"):
            get(path, self.health)
        for path in ("/server_info", "/get_server_info"):
            get(path, self.server_info)
        for path in ("/model_info", "/get_model_info"):
            get(path, self.model_info)
        get("/v1/models", self.models)
        get("/v1/loads", self.loads)
        get("/metrics", self.metrics)
        post("/generate", self.generate)
        post("/abort_request", self.abort)
        post("/flush_cache", self.flush)
        post("/fake/faults", self.set_faults)
        get("/fake/state", self.state)
        return app

    @web.middleware
    async def authorise(self, request: web.Request, handler: Any) -> web.StreamResponse:
        open_to_all = request.path.startswith(("/health", "/metrics"))
        given = request.headers.get("Authorization", "")
        if self.key and not open_to_all and given != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    async def serve(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.args.host, self.args.port))
        if self.args.stubborn_child:
            start_stubborn_child(listener)
        runner = web.AppRunner(self.app(), handler_cancellation=False, access_log=None)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        stop = asyncio.Event()
        if not self.args.ignore_sigterm:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        steps = asyncio.create_task(self.scheduler.run())
        await asyncio.sleep(self.args.start_seconds)  # lasts: loading a model
        self.ready = True
        print("The server is fired up and ready to roll!", flush=True)
        await stop.wait()
        self.draining = True
        await self.scheduler.empty()
        steps.cancel()
        await runner.cleanup()


def bad(body: Any) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=json.dumps(body), content_type="application/json")


def die(words: str, code: int) -> None:
    print(words, flush=True)
    os._exit(code)


def start_stubborn_child(listener: socket.socket) -> None:
    """A child that ignores SIGTERM, leaves the session and keeps the port."""
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(3600)"
    fd = listener.fileno()
    subprocess.Popen(
        [sys.executable, "-S", "-c", code, "stubborn"], pass_fds=[fd], start_new_session=True
    )


def main() -> int:
    args = parse(sys.argv[1:])
    if args.refuse and (args.refuse_file is None or args.refuse_file.exists()):
        print(args.refuse, flush=True)
        return 1
    server = FakeServer(args)
    faults = server.scheduler.faults = Faults(**json.loads(args.faults))
    if args.mem_fraction_static < faults.crash_above:
        faults.crash_on_request = 0
    if args.running < args.max_running_requests:
        slots = f"(max_mamba_cache_size={args.max_mamba_cache_size}, 5 state slots per request)"
        capped = f"max_running_requests is capped to {args.running} by the mamba state cache"
        print(f"{capped} {slots}. To raise it: ...", flush=True)
    if args.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    asyncio.run(server.serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
