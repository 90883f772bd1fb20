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
    Sampling,
    Turn,
    Usage,
    Verdict,
)
from consumer.engine.api import Answer
from consumer.generation import request as requests
from consumer.generation.conversation import Conversation
from consumer.generation.verdict import Fault, examine, judge
from consumer.generation.visible import shows
from consumer.leases.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.ids import WorkerName
    from common.records import Row
    from consumer.engine.api import Engine, EngineFacts
    from consumer.generation.client import Client
    from consumer.generation.render import Prompts
    from consumer.generation.thinking import Thinking
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
class _Done:
    """A turn that has an answer, whatever that is worth; ``why`` it is not ok, for people."""

    turn: Turn
    sampling: Sampling
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Stopped:
    """A turn without an answer. ``begun``: the engine may have worked on it."""

    fault: Fault
    begun: bool = True
    died: bool = False


class Runner:
    """Runs items one at a time each; any number of :meth:`run` may be under way."""

    def __init__(
        self, engine: Engine, client: Client, worker: WorkerName, progress: Progress | None = None
    ) -> None:
        self._engine = engine
        self._client = client
        self._worker = worker
        self._progress = progress or Progress(worker)

    async def run(self, work: Work, ready: Ready) -> Ended:
        """Answer every turn of the item's row and judge the result.

        A conversation goes on with the turns that an earlier holder of the item finished. Where
        the run keeps answers, those of the row are taken, and the engine is not asked.

        Never raises for anything that an engine or a row can do; cancelling it gives up the
        request in flight.
        """
        settings = work.run.manifest.settings
        try:
            marks = await ready.prompts.marks()
        except EngineError as error:
            return _stopped(work, _Stopped(Fault(Verdict.ENGINE_DOWN, str(error)), begun=False))
        talk = Conversation(work.row.messages, marks, own=settings.keep_answers)
        if not talk.open:
            return _failed(work, Fault(Verdict.BAD_ROW, "no message of the row asks anything"), 0)
        started, began = datetime.now(UTC), time.monotonic()
        turns = await self._earlier(work, talk)
        while True:
            done = await self._answer(work, talk, ready)
            if isinstance(done, _Stopped):
                return _stopped(work, done, turns)
            if (fault := _refused(settings, done)) is not None:
                return _failed(work, fault, done.turn.usage.completion_tokens, turns)
            if talk.left == 1:
                break
            turns.append(done.turn)
            talk.answer(done.turn.content)
            if not settings.keep_answers:
                self._progress.save(work.held, turns)
        when = (started.isoformat(timespec="milliseconds"), round(time.monotonic() - began, 3))
        completion = self._completion(work, ready, talk, done, turns=turns, when=when)
        return _finished(work, completion)

    async def close(self) -> None:
        """Wait shortly until what was said last of conversations under way is kept."""
        await self._progress.close()

    async def _earlier(self, work: Work, talk: Conversation) -> list[Turn]:
        """Return the turns that are finished already, and put their answers in."""
        if talk.left == 1 or talk.own:
            return []
        turns = (await self._progress.load(work.held))[: talk.left - 1]
        for turn in turns:
            talk.answer(turn.content)
        return turns

    async def _answer(self, work: Work, talk: Conversation, ready: Ready) -> _Done | _Stopped:
        settings = work.run.manifest.settings
        try:
            ids = await ready.prompts.render(talk.prompt, thinking=settings.thinking)
            thinking = await ready.prompts.thinking(ids)
            if talk.own:
                return await self._brought(work, talk, ready, ids, thinking)
            return await self._generate(work, ready, ids, thinking)
        except ValueError as error:
            return _Stopped(
                Fault(Verdict.BAD_ROW, f"the chat template refuses the row: {error!s:.400}")
            )
        except EngineError as error:
            return _Stopped(Fault(Verdict.ENGINE_DOWN, str(error)), begun=False)

    async def _generate(
        self, work: Work, ready: Ready, ids: list[int], thinking: Thinking
    ) -> _Done | _Stopped:
        settings = work.run.manifest.settings
        attempt = requests.Attempt(work.leased.item, work.leased.attempt)
        request = requests.build(work.row, settings, attempt, ids, ready.facts)
        if isinstance(request, Fault):
            return _Stopped(request)
        sent = await self._client.send(request, seconds=settings.request_seconds)
        answer = examine(sent.reply, request, self._engine.read)
        if isinstance(answer, Fault):
            return _Stopped(answer, begun=sent.reply.sent, died=sent.died)
        judged = judge(answer, await ready.prompts.parts(answer, thinking))
        counts = (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens)
        turn = Turn(
            content=judged.parts.content,
            reasoning_content=judged.parts.reasoning,
            input_ids=list(request.input_ids),
            output_ids=answer.output_ids,
            finish_reason=answer.finish_reason,
            verdict=str(judged.verdict),
            usage=Usage(*counts, judged.parts.reasoning_tokens),
            seed=request.seed,
            attempt=attempt.number,
        )
        return _Done(turn, request.sampling, judged.text)

    async def _brought(
        self, work: Work, talk: Conversation, ready: Ready, ids: list[int], thinking: Thinking
    ) -> _Done:
        """Take the row's own answer as if the model had said it. No seed, no sampling."""
        brought = talk.brought
        said = await ready.prompts.written(brought, thinking)
        as_said = Answer(None, said, None, "stop", len(ids), len(said), 0, "")
        parts = await ready.prompts.parts(as_said, thinking)
        verdict, why = Verdict.OK, ""
        if not shows(brought.content):
            verdict = Verdict.THOUGHT_ONLY if brought.reasoning else Verdict.EMPTY
            why = "the row's own answer has no text"
        turn = Turn(
            content=brought.content,
            reasoning_content=brought.reasoning,
            input_ids=ids,
            output_ids=said,
            finish_reason="stop",
            verdict=str(verdict),
            usage=Usage(len(ids), len(said), 0, parts.reasoning_tokens),
            seed=0,
            attempt=work.leased.attempt,
        )
        return _Done(turn, Sampling(), why)

    def _completion(
        self,
        work: Work,
        ready: Ready,
        talk: Conversation,
        done: _Done,
        *,
        turns: list[Turn],
        when: tuple[str, float],
    ) -> Completion:
        row: Row = work.row
        last, facts = done.turn, ready.facts
        flagged = [turn.verdict for turn in (last, *reversed(turns)) if turn.verdict != Verdict.OK]
        return Completion(
            k=work.leased.item,
            row=row.i,
            sample=work.sample,
            row_id=row.id,
            messages=talk.prompt,
            content=last.content,
            reasoning_content=last.reasoning_content,
            input_ids=last.input_ids,
            output_ids=last.output_ids,
            finish_reason=last.finish_reason,
            verdict=flagged[0] if flagged else str(Verdict.OK),
            usage=last.usage,
            seed=last.seed,
            sampling=done.sampling,
            model=facts.model,
            engine=f"{facts.engine} {facts.version}",
            attempt=work.leased.attempt,
            worker=self._worker,
            started=when[0],
            seconds=when[1],
            metadata=row.metadata,
            turns=turns,
        )


def _stopped(work: Work, turn: _Stopped, kept: Sequence[Turn] = ()) -> Ended:
    """End a try whose turn has no answer; the turns before it are kept for the next one."""
    fault = turn.fault
    if fault.verdict not in ENGINE_FAULTS:
        return _failed(work, fault, 0, kept)
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
    )
    return Ended(fault.verdict, failure=failure, engine_fault=True, died=turn.died)


def _policy(settings: RunSettings, verdict: Verdict) -> Policy:
    name = settings.policies.get(str(verdict))
    try:
        policy = Policy(name) if name else DEFAULT_POLICIES.get(verdict, Policy.RETRY)
    except ValueError:
        policy = DEFAULT_POLICIES.get(verdict, Policy.RETRY)
    if policy is Policy.RETRY and settings.keep_answers:
        return Policy.DEAD  # the row says the same again
    return policy


def _refused(settings: RunSettings, done: _Done) -> Fault | None:
    """Return why an answer is not stored; None if it is, flagged where it is not ok."""
    verdict = Verdict(done.turn.verdict)
    if verdict is Verdict.OK or _policy(settings, verdict) is Policy.KEEP:
        return None
    return Fault(verdict, done.why)


def _failed(work: Work, fault: Fault, tokens: int, kept: Sequence[Turn] = ()) -> Ended:
    """Charge the row. A policy of keeping cannot apply where nothing was generated.

    ``tokens`` are thrown away, and those of the turns that are ``kept`` only if this is the end.
    """
    final = _policy(work.run.manifest.settings, fault.verdict) is Policy.DEAD
    if final:
        tokens += sum(turn.usage.completion_tokens for turn in kept)
    failure = Failure(
        work.leased.item,
        work.leased.token,
        fault.verdict,
        fault.text,
        charged=True,
        final=final,
        completion_tokens=tokens,
    )
    return Ended(fault.verdict, failure=failure, completion_tokens=tokens)


def _finished(work: Work, completion: Completion) -> Ended:
    usages = [completion.usage, *(turn.usage for turn in completion.turns)]
    prompt = sum(usage.prompt_tokens for usage in usages)
    said = sum(usage.completion_tokens for usage in usages)
    try:
        payload = compress(dumps(completion), level=ZSTD_LEVEL_FAST)
    except TypeError as error:
        text = f"the completion has no JSON form: {error}"
        return _failed(work, Fault(Verdict.CONTENT_ERROR, text), said)
    verdict = Verdict(completion.verdict)
    cached = sum(usage.cached_tokens for usage in usages)
    finished = Finished(work.leased.item, work.leased.token, verdict, payload, prompt, said, cached)
    return Ended(verdict, finished=finished, completion_tokens=said)
