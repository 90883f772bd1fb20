"""What an engine's reply is worth: the one place that decides what counts as success.

Pure: bytes and settings in, a class out. Nothing here raises for any reply whatever.

An engine fault (:data:`common.records.ENGINE_FAULTS`) says nothing about the row and is never
charged to it. A 5xx is one, too: a row that makes an engine answer 500 each time is given up by
its deliveries, while an engine that answers 500 to everything must not use up a run's attempts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.records import Verdict
from consumer.generation.visible import shows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consumer.engine.api import Answer, GenerateRequest, Reply
    from consumer.generation.thinking import Parts

TEXT_BYTES = 400  # of an engine's words in a fault's text
TAIL_TOKENS = 2048  # how much of an answer's end is searched for a loop
LOOP_TOKENS = 128  # a loop covers at least so many tokens
LONGEST_PERIOD = 512
CUT_REPEATS = 4  # an answer that was cut off loops if its tail repeats so often
STOPPED_REPEATS = 8  # one that ended by itself needs more: a refrain is not a loop

_TOO_LONG = re.compile(
    r"longer than the model's context|maximum context length|exceed_context_size"
    r"|exceeds the available context|context size has been exceeded|input is too long"
    r"|larger than the context size",
    re.IGNORECASE,
)
_OVERLOADED = re.compile(r"queue is full|higher priority request|overloaded", re.IGNORECASE)
_OUT_OF_TIME = re.compile(r"no answer within|time(d)?[ -]?out|out of time", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a reply holds no answer to judge; ``text`` is for people."""

    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer and its class."""

    verdict: Verdict
    parts: Parts
    text: str  # why it is not ok, for people; else empty


def examine(reply: Reply, sent: GenerateRequest, read: Callable[[bytes], Answer]) -> Answer | Fault:
    """Return the answer that ``reply`` holds to the request ``sent``, or why there is none."""
    if reply.status is None:
        late = reply.sent and _OUT_OF_TIME.search(reply.error)
        return Fault(Verdict.TIMEOUT if late else Verdict.ENGINE_DOWN, reply.error[:TEXT_BYTES])
    if reply.status != 200:
        return _refusal(reply.status, _words(reply.body))
    try:
        answer = read(reply.body)
    except Exception as error:  # noqa: BLE001 - a dialect's reader must not end the daemon
        return Fault(Verdict.MALFORMED, f"unreadable answer: {error!s:.200}: {_words(reply.body)}")
    return _misfit(answer, sent) or answer


def judge(answer: Answer, parts: Parts) -> Judged:
    """Class a whole answer that was taken apart into ``parts``; what shows nothing is no text."""
    reasoning, content = parts.reasoning, parts.content
    cut = answer.finish_reason == "length"
    blank = not shows(content)
    if period := loop_period(answer.output_ids, CUT_REPEATS if cut else STOPPED_REPEATS):
        what = Verdict.LOOPING, f"its end repeats {period} tokens again and again"
    elif reasoning is not None and blank:
        after = "nothing follows the thought" if parts.closed else "the thought never ended"
        what = Verdict.THOUGHT_ONLY, f"{after} ({answer.completion_tokens} tokens)"
    elif blank:
        text = "visible text" if content.strip() else "text"
        what = Verdict.EMPTY, f"no {text} in {answer.completion_tokens} tokens"
    elif cut:
        what = Verdict.TRUNCATED, f"cut off at {answer.completion_tokens} tokens"
    else:
        what = Verdict.OK, ""
    return Judged(what[0], parts, what[1])


def loop_period(ids: Sequence[int], repeats: int) -> int:
    """Return the period of the loop that ``ids`` end in, or 0.

    A loop is a sequence repeated at least ``repeats`` times over at least ``LOOP_TOKENS`` tokens.
    Only the last ``TAIL_TOKENS`` are looked at, so the cost is bounded.
    """
    tail = list(ids[-TAIL_TOKENS:])
    size = len(tail)
    for period in range(1, min(LONGEST_PERIOD, size // repeats) + 1):
        span = max(LOOP_TOKENS, period * repeats)
        if span > size:
            break
        if tail[-1] != tail[-1 - period] or tail[-period] != tail[-2 * period]:
            continue
        if tail[size - span : size - period] == tail[size - span + period :]:
            return period
    return 0


def _refusal(status: int, words: str) -> Fault:
    text = f"HTTP {status}: {words}"
    if status in {429, 503} or (status >= 500 and _OVERLOADED.search(words)):
        return Fault(Verdict.BUSY, text)
    if status in {400, 413, 422}:
        too_long = status == 413 or _TOO_LONG.search(words)
        return Fault(Verdict.TOO_LONG if too_long else Verdict.CONTENT_ERROR, text)
    if status in {408, 504}:
        return Fault(Verdict.TIMEOUT, text)
    return Fault(Verdict.MALFORMED, text)


def _misfit(answer: Answer, sent: GenerateRequest) -> Fault | None:
    """Return why a well-formed answer is not the answer to ``sent``."""
    if answer.rid is not None and answer.rid != sent.rid:
        return Fault(Verdict.MALFORMED, f"answers request {answer.rid[:40]}, not {sent.rid}")
    if answer.finish_reason == "abort":
        verdict = Verdict.TOO_LONG if _TOO_LONG.search(answer.detail) else Verdict.ABORTED
        return Fault(verdict, f"aborted by the engine: {answer.detail[:TEXT_BYTES]}")
    if answer.prompt_tokens < len(sent.input_ids):
        seen = f"the engine saw {answer.prompt_tokens} of {len(sent.input_ids)} prompt tokens"
        return Fault(Verdict.INPUT_TRUNCATED, seen)
    if answer.completion_tokens and not answer.output_ids:
        return Fault(Verdict.MALFORMED, f"{answer.completion_tokens} tokens counted, none returned")
    return None


def _words(body: bytes) -> str:
    text = body[:TEXT_BYTES].decode("utf-8", errors="replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
