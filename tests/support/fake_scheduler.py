"""The heart of the stand-in: requests that wait, run a token a step, and end.

What it "generates" depends on the prompt and the seed only: printable ASCII as byte tokens
(:mod:`tests.support.tiny_tokenizer`) and then the end token, or the length limit, if that is first.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_pool import TokenPool
from tests.support.tiny_tokenizer import EOS_ID

_WORDS = ("blue", "salt", "over", "under", "seven", "quiet", "river", "stone", "cloud", "bread")


@dataclass
class Job:
    rid: str
    input_ids: list[int]
    max_new_tokens: int
    seed: int
    ignore_eos: bool
    stop: tuple[str, ...]
    done: asyncio.Event = field(default_factory=asyncio.Event)  # the answer may go
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # it runs no more
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: dict[str, Any] | None = None
    cached: int = 0
    plan: list[int] = field(default_factory=list)
    shift: float = 0.0  # of its log-probabilities
    unseen: int = 0  # prompt tokens that it counts too few
    silent: bool = False  # about cached tokens
    few_logprobs: bool = False
    retractions: int = 0

    @property
    def prompt(self) -> int:
        return len(self.input_ids)

    @property
    def written(self) -> int:
        return len(self.output_ids)

    @property
    def most(self) -> int:
        return self.max_new_tokens


@dataclass
class Faults:
    """Switches; all off. The control endpoint sets them by name while the server runs."""

    crash_on_request: int = 0  # exit at the n-th /generate from now (1 is the next)
    crash_above: float = 0.0  # the crash is not for an engine that takes a smaller share of memory
    crash_code: int = 1
    crash_words: str = "Scheduler hit an exception"
    kill_text: str = ""  # a prompt that holds this ends the server
    refuse_text: str = ""  # a prompt that holds this is answered 400
    hang: bool = False  # no more steps; health stays as it is
    health_status: int = 0  # what /health says, whatever is the case
    detokenizer_dead: bool = False  # steps go on, answers never come
    forget_requests: bool = False  # the scheduler loses what it has, answers never come
    fail_fast: bool = False  # every /generate is a 500 within 5 ms
    storm_status: int = 0  # every /generate is this status
    storm_count: int = 0  # for so many requests; 0: until switched off
    answer: str = ""  # truncated | html | not_json | empty | swapped | no_meta | cut_body | error
    answer_count: int = 0  # for so many answers; 0: until switched off
    abort_answers: int = 0  # so many answers end with finish reason abort
    dishonest: str = ""  # uncached | cached | crowd | always: wrong output in that case
    empty_answers: int = 0  # so many answers are the end token alone
    empty_share: float = 0.0  # of the answers are, by prompt and seed
    empty_text: str = ""  # what a prompt that holds this gets, at every try
    loop_answers: int = 0  # so many answers repeat one word up to the limit
    cut_prompts: int = 0  # so many prompts lose their first token on the way
    no_flush: bool = False  # the cache is never dropped
    no_cached_counts: bool = False  # answers do not say how many tokens were cached
    few_logprobs: bool = False  # answers have one log-probability too few
    token_pool: int = 0  # so many tokens find room: more wait, or are put back to wait
    queue_limit: int = 0  # where more than so many wait, requests are refused
    queue_status: int = 503  # the status of that refusal


class Scheduler:
    def __init__(
        self,
        *,
        max_running: int,
        token_seconds: float,
        prefill_seconds: float,
        answer_tokens: int,
        request_seconds: float = 0.0,
        prefix_chunk: int = 1,
    ) -> None:
        self.max_running = max_running
        self.token_seconds = token_seconds
        self.request_seconds = request_seconds
        self.prefill_seconds = prefill_seconds
        self.answer_tokens = answer_tokens
        self.faults = Faults()
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.prefix_chunk = prefix_chunk  # prefixes are kept at multiples of it; 0: none is
        self.seen: set[tuple[int, ...]] = set()
        self.steps = 0
        self.decoded = 0
        self.prefilled = 0
        self.finished = 0
        self.finished_tokens = 0
        self.pool = TokenPool()
        self.most_jobs = 0  # at once, waiting ones included
        self.aborted = 0
        self._wake = asyncio.Event()

    @property
    def jobs(self) -> list[Job]:
        return [*self.running, *self.waiting]

    def add(self, job: Job) -> None:
        self.waiting.append(job)
        self.most_jobs = max(self.most_jobs, len(self.jobs))
        self._wake.set()

    def abort(self, prefix: str) -> None:
        """By prefix, as the real one does."""
        for job in self.jobs:
            if job.rid.startswith(prefix):
                waits = job in self.waiting
                message = "Abort in waiting queue" if waits else "Aborted"
                self._end(job, {"type": "abort", "message": message}, drop=waits)

    def flush(self) -> bool:
        if self.jobs or self.faults.no_flush:
            return False
        self.seen.clear()
        return True

    async def empty(self) -> None:
        """Wait until nothing runs or waits."""
        while jobs := self.jobs:
            await jobs[0].ended.wait()

    async def run(self) -> None:
        while True:
            if self.faults.hang:
                await asyncio.sleep(0.01)  # poll: the switch that made it hang
                continue
            if not self.jobs:
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._step()

    async def _step(self) -> None:
        self.pool.size = self.faults.token_pool
        while self._next_fits():
            job = self.waiting.popleft()
            self._admit(job)
            if self.prefill_seconds:
                await asyncio.sleep(self.prefill_seconds)  # lasts: a prefill
        seconds = self.token_seconds + self.request_seconds * len(self.running)
        await asyncio.sleep(seconds)  # lasts: a step
        self.steps += 1
        self._make_room()
        for job in list(self.running):
            if not self.faults.hang:
                self._decode(job)
        if self.faults.forget_requests:
            self.running.clear()
            self.waiting.clear()

    def _next_fits(self) -> bool:
        if not self.waiting or len(self.running) >= self.max_running:
            return False
        return self.pool.admits(self.waiting[0], self.running)

    def _make_room(self) -> None:
        """Put requests back to wait, with what they have written; the last one is given up."""
        for job in self.pool.retract(self.running):
            job.retractions += 1
            self.running.remove(job)
            self.waiting.append(job)
        if self.pool.overflows(self.running):
            words = "Out of memory even after retracting all other requests in the decode batch."
            self._end(self.running[0], {"type": "abort", "message": words, "status_code": 500})

    def _admit(self, job: Job) -> None:
        if job.retractions:  # what it has written is read in again, as a part of its prompt
            self.prefilled += job.prompt + job.written
            self.running.append(job)
            return
        job.cached = self._cached(job.input_ids)
        self.seen.add(tuple(job.input_ids))
        self.prefilled += len(job.input_ids) - job.cached
        job.silent, job.few_logprobs = self.faults.no_cached_counts, self.faults.few_logprobs
        if self.faults.cut_prompts:
            self.faults.cut_prompts -= 1
            job.unseen = 1
        job.plan = self._plan(job)
        self.running.append(job)
        if job.max_new_tokens == 0:
            self._end(job, {"type": "length", "length": 0})

    def _cached(self, ids: list[int]) -> int:
        """Of a prompt that was there before; the last token is always read, and no other prefix.

        As captured: 31 of a repeated prompt of 32 tokens, and 0 where states are kept each 64.
        """
        if not self.prefix_chunk or tuple(ids) not in self.seen:
            return 0
        return (len(ids) - 1) // self.prefix_chunk * self.prefix_chunk

    def _plan(self, job: Job) -> list[int]:
        faults = self.faults
        if faults.empty_answers:
            faults.empty_answers -= 1
            return [EOS_ID]
        if faults.loop_answers:
            faults.loop_answers -= 1
            return list(b"again and " * (job.max_new_tokens // 10 + 1))
        digest = hashlib.sha256(repr((job.input_ids, job.seed)).encode()).digest()
        if digest[1] < 256 * faults.empty_share:
            return [EOS_ID]
        if faults.empty_text and faults.empty_text.encode() in bytes(
            token for token in job.input_ids if token < 256
        ):
            return [EOS_ID]
        crowd = len(self.running) > 0
        case = "cached" if job.cached else "crowd" if crowd else "uncached"
        if faults.dishonest in (case, "always"):
            digest = digest[::-1]
            job.shift = -1.5
        length = self.answer_tokens or 8 + digest[0] % 56
        words = [_WORDS[b % len(_WORDS)] for b in digest]
        text = (" ".join(words) * (length // 100 + 1)).capitalize()[:length]
        return [*text.encode(), EOS_ID]

    def _decode(self, job: Job) -> None:
        place = len(job.output_ids)
        token = job.plan[place % len(job.plan)] if job.ignore_eos else job.plan[place]
        if job.ignore_eos and token == EOS_ID:
            token = 46
        job.output_ids.append(token)
        job.logprobs.append(job.shift - 0.1 - (token * 37 % 100) / 50 * math.exp(-place / 50))
        self.decoded += 1
        text = bytes(i for i in job.output_ids if i < 256).decode(errors="replace")
        matched = next((stop for stop in job.stop if stop in text), None)
        if token == EOS_ID and not job.ignore_eos:
            self._end(job, {"type": "stop", "matched": EOS_ID})
        elif matched is not None:
            self._end(job, {"type": "stop", "matched": matched})
        elif len(job.output_ids) >= job.max_new_tokens:
            self._end(job, {"type": "length", "length": job.max_new_tokens})

    def _end(self, job: Job, finish: dict[str, Any], *, drop: bool = False) -> None:
        (self.waiting if drop else self.running).remove(job)
        if finish["type"] == "abort":
            self.aborted += 1
            finish = {"status_code": None, "err_type": None} | finish
        job.finish = finish
        self.finished += 1
        self.finished_tokens += len(job.output_ids)
        job.ended.set()
        if not self.faults.detokenizer_dead:
            job.done.set()
