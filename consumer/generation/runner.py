"""One item, from its lease to what the queue is told: a completion, a failure, or a release."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from common.codec import ZSTD_LEVEL_FAST, compress, dumps
from common.errors import EngineError
from common.records import (
    DEFAULT_POLICIES,
    ENGINE_FAULTS,
    Completion,
    Failure,
    Finished,
    Policy,
    RunSettings,
    Usage,
    Verdict,
)
from consumer.generation import request as requests
from consumer.generation.render import Conversation
from consumer.generation.verdict import Fault, Judged, examine, judge

if TYPE_CHECKING:
    from common.ids import WorkerName
    from common.records import Row
    from consumer.engine.api import Answer, Engine, EngineFacts, GenerateRequest
    from consumer.generation.client import Client
    from consumer.generation.render import Prompts
    from consumer.leases.fetcher import Work


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine that is up now, as far as generation needs to know it."""

    facts: EngineFacts
    prompts: Prompts


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of one try. ``finished`` and ``failure`` both None: give the item back."""

    verdict: Verdict
    finished: Finished | None = None
    failure: Failure | None = None
    engine_fault: bool = False
    died: bool = False  # an engine fault that was the engine's death
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Turn:
    request: GenerateRequest
    answer: Answer
    judged: Judged


@dataclass(frozen=True, slots=True)
class _Stopped:
    """A turn without an answer. ``begun``: the engine may have worked on it."""

    fault: Fault
    begun: bool = True
    died: bool = False


class Runner:
    """Runs items one at a time each; any number of :meth:`run` may be under way."""

    def __init__(self, engine: Engine, client: Client, worker: WorkerName) -> None:
        self._engine = engine
        self._client = client
        self._worker = worker

    async def run(self, work: Work, ready: Ready) -> Ended:
        """Answer every turn of the item's row and judge the result.

        Never raises for anything that an engine or a row can do; cancelling it gives up the
        request in flight.
        """
        talk = Conversation(work.row.messages)
        if not talk.open:
            return _failed(work, Fault(Verdict.BAD_ROW, "no message of the row asks anything"), 0)
        started, began = datetime.now(UTC), time.monotonic()
        spent, flagged = [0, 0], Verdict.OK
        while True:
            turn = await self._turn(work, talk, ready)
            if isinstance(turn, _Stopped):
                return _stopped(work, turn, spent[1])
            spent[0] += turn.answer.prompt_tokens
            spent[1] += turn.answer.completion_tokens
            judged = turn.judged
            if judged.verdict is not Verdict.OK:
                if _policy(work.run.manifest.settings, judged.verdict) is not Policy.KEEP:
                    return _failed(work, Fault(judged.verdict, judged.text), spent[1])
                flagged = judged.verdict
            if talk.last:
                break
            talk.answer(judged.content)
        verdict = flagged if judged.verdict is Verdict.OK else judged.verdict
        when = (started.isoformat(timespec="milliseconds"), round(time.monotonic() - began, 3))
        completion = self._completion(work, ready, talk, turn, verdict=verdict, when=when)
        return _finished(work, verdict, completion, spent)

    async def _turn(self, work: Work, talk: Conversation, ready: Ready) -> _Turn | _Stopped:
        settings = work.run.manifest.settings
        try:
            ids = await ready.prompts.render(talk.prompt, thinking=settings.thinking)
            thinking = await ready.prompts.thinking(ids)
            attempt = requests.Attempt(work.leased.item, work.leased.attempt)
            request = requests.build(work.row, settings, attempt, ids, ready.facts)
            if isinstance(request, Fault):
                return _Stopped(request)
            sent = await self._client.send(request, seconds=settings.request_seconds)
            answer = examine(sent.reply, request, self._engine.read)
            if isinstance(answer, Fault):
                return _Stopped(answer, begun=sent.reply.sent, died=sent.died)
            text = await ready.prompts.text(answer.output_ids, answer.text)
        except ValueError as error:
            return _Stopped(
                Fault(Verdict.BAD_ROW, f"the chat template refuses the row: {error!s:.400}")
            )
        except EngineError as error:
            return _Stopped(Fault(Verdict.ENGINE_DOWN, str(error)), begun=False)
        return _Turn(request, answer, judge(answer, text, thinking))

    def _completion(
        self,
        work: Work,
        ready: Ready,
        talk: Conversation,
        turn: _Turn,
        *,
        verdict: Verdict,
        when: tuple[str, float],
    ) -> Completion:
        row: Row = work.row
        answer, facts = turn.answer, ready.facts
        return Completion(
            k=work.leased.item,
            row=row.i,
            sample=work.sample,
            row_id=row.id,
            messages=talk.prompt,
            content=turn.judged.content,
            reasoning_content=turn.judged.reasoning,
            input_ids=list(turn.request.input_ids),
            output_ids=answer.output_ids,
            finish_reason=answer.finish_reason,
            verdict=str(verdict),
            usage=Usage(answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens),
            seed=turn.request.seed,
            sampling=turn.request.sampling,
            model=facts.model,
            engine=f"{facts.engine} {facts.version}",
            attempt=work.leased.attempt,
            worker=self._worker,
            started=when[0],
            seconds=when[1],
            metadata=row.metadata,
        )


def _stopped(work: Work, turn: _Stopped, tokens: int) -> Ended:
    fault = turn.fault
    if fault.verdict not in ENGINE_FAULTS:
        return _failed(work, fault, tokens)
    if not turn.begun:
        return Ended(fault.verdict, engine_fault=True)
    failure = Failure(
        work.leased.item,
        work.leased.token,
        fault.verdict,
        fault.text,
        charged=False,
        engine_died=turn.died,
        alone=work.suspect,  # such items are run with no other beside them
        completion_tokens=tokens,
    )
    return Ended(fault.verdict, failure=failure, engine_fault=True, died=turn.died)


def _policy(settings: RunSettings, verdict: Verdict) -> Policy:
    name = settings.policies.get(str(verdict))
    try:
        return Policy(name) if name else DEFAULT_POLICIES.get(verdict, Policy.RETRY)
    except ValueError:
        return DEFAULT_POLICIES.get(verdict, Policy.RETRY)


def _failed(work: Work, fault: Fault, tokens: int) -> Ended:
    """Charge the row. A policy of keeping cannot apply where nothing was generated."""
    policy = _policy(work.run.manifest.settings, fault.verdict)
    failure = Failure(
        work.leased.item,
        work.leased.token,
        fault.verdict,
        fault.text,
        charged=True,
        final=policy is Policy.DEAD,
        completion_tokens=tokens,
    )
    return Ended(fault.verdict, failure=failure, completion_tokens=tokens)


def _finished(work: Work, verdict: Verdict, completion: Completion, spent: list[int]) -> Ended:
    try:
        payload = compress(dumps(completion), level=ZSTD_LEVEL_FAST)
    except TypeError as error:
        text = f"the completion has no JSON form: {error}"
        return _failed(work, Fault(Verdict.CONTENT_ERROR, text), spent[1])
    finished = Finished(work.leased.item, work.leased.token, verdict, payload, spent[0], spent[1])
    return Ended(verdict, finished=finished, completion_tokens=spent[1])
