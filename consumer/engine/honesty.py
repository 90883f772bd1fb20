"""Is an engine honest? It answers fixed prompts in three ways, which must agree with one another.

A build, a kernel or a setting can make an engine answer nonsense at full speed, with good health,
good lengths and good finish reasons. It shows when the engine is compared with itself: a prompt
read whole, the same with its prefix cached, and in a crowd are three paths through its code, and
lead to the same probabilities up to rounding.

Greedy answers with log-probabilities are compared token by token up to and including the first
difference: two near-equal candidates may change places by rounding, but their log-probabilities
stay near each other. What follows a difference says nothing, so it is not compared.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from common.codec import dumps, loads
from common.errors import EngineError
from common.ids import new_nonce
from common.records import Sampling
from consumer.engine.api import Engine, EngineFacts, EngineSpec, GenerateRequest, Http
from consumer.engine.life import UnfitError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = structlog.get_logger(__name__)

# The first two leave a language model hardly a choice, the last one does.
PROMPTS = (
    "Repeat this line and nothing else: one two three four five six seven eight",
    "Continue the list: Monday, Tuesday, Wednesday, Thursday,",
    "What is the capital of France?",
)
TOKENS = 6
CROWD = 16
TOLERANCE = 0.25  # mean difference of log-probabilities; rounding in bfloat16 makes some 0.05
WORST = 4.0  # and of a single answer: so many times that
AGREE_TOKENS = 3  # half of the prompts must begin with the same tokens
FLOOR = -6.0  # mean log-probability of the likeliest tokens: lower is noise, not language
_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One greedy answer to one of the prompts."""

    prompt: str
    way: str
    text: str
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Honesty:
    """The check, for :class:`consumer.engine.supervisor.Supervisor`.

    ``record`` holds the answers of the engine that was accepted first; a ``reference`` from
    elsewhere (another engine of the same run) takes its place. Every later incarnation must agree
    with it, and every incarnation with itself.
    """

    def __init__(
        self,
        *,
        reference: Sequence[Probe] = (),
        tolerance: float = TOLERANCE,
        ids: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Take what to compare with.

        ``ids``: token ids to ask, by a name, for weights that know no language (random ones): then
        log-probabilities are compared and nothing else, since such weights prefer no token.
        """
        self.record: tuple[Probe, ...] = tuple(reference)
        self.tolerance = tolerance
        self._ids = ids

    async def __call__(
        self, engine: Engine, http: Http, spec: EngineSpec, facts: EngineFacts
    ) -> None:
        """Accept the engine, or refuse it.

        Raises:
            UnfitError: it contradicts itself or the record; shows the texts side by side.
            EngineError: it gives no answers to judge.
        """
        probes = await ask(engine, http, spec, facts, ids=self._ids)
        first, language = probes["uncached"], self._ids is None
        if language:
            judge_floor(first)
        for way in ("cached", "crowd"):
            judge(first, probes[way], self.tolerance, language=language)
        if self.record:
            judge(self.record, first, 2 * self.tolerance, language=language)
        else:
            self.record = first
        log.info("engine.honest", answers=[probe.text for probe in first])


def pack(record: Sequence[Probe]) -> bytes:
    """Return a record as it is kept for engines elsewhere."""
    return dumps(list(record))


def unpack(data: bytes) -> tuple[Probe, ...]:
    """Return what :func:`pack` was given; nothing where another release wrote it otherwise."""
    try:
        return tuple(
            Probe(
                prompt=str(one["prompt"]),
                way=str(one["way"]),
                text=str(one["text"]),
                output_ids=tuple(int(i) for i in one["output_ids"]),
                logprobs=tuple(float(value) for value in one["logprobs"]),
            )
            for one in loads(data)
        )
    except (ValueError, TypeError, KeyError):
        return ()


async def ask(
    engine: Engine,
    http: Http,
    spec: EngineSpec,
    facts: EngineFacts,
    *,
    ids: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, tuple[Probe, ...]]:
    """Return the answers of each way, in the order of :data:`PROMPTS`, or of ``ids``."""
    if ids is None:
        renderer = engine.renderer(spec, http)
        prompts = {
            text: await renderer.render([{"role": "user", "content": text}], thinking=False)
            for text in PROMPTS
        }
    else:
        prompts = {name: list(some) for name, some in ids.items()}
    texts = list(prompts)

    async def one(text: str, way: str) -> Probe:
        return await _probe(engine, http, text, prompts[text], way)

    await engine.forget(http)
    uncached = [await one(text, "uncached") for text in texts]
    cached = [await one(text, "cached") for text in texts]
    await engine.forget(http)
    size = max(len(texts), min(CROWD, facts.max_running))
    crowd = await asyncio.gather(*(one(texts[n % len(texts)], "crowd") for n in range(size)))
    return {"uncached": tuple(uncached), "cached": tuple(cached), "crowd": tuple(crowd)}


async def _probe(engine: Engine, http: Http, text: str, ids: list[int], way: str) -> Probe:
    request = GenerateRequest(
        rid=new_nonce() * 2,
        input_ids=ids,
        sampling=Sampling(max_tokens=TOKENS, temperature=0.0),
        seed=0,
        logprobs=True,
        fresh=way != "cached",
    )
    path, body = engine.generate(request)
    reply = await http.post(path, body, _SECONDS)
    try:
        answer = engine.read(reply.required())
    except ValueError as error:
        raise EngineError("The engine did not answer the test prompts.", why=str(error)) from error
    if not answer.logprobs:
        raise EngineError("The engine gives no log-probabilities, so it cannot be checked.")
    words = answer.text if answer.text is not None else str(answer.output_ids)
    return Probe(text, way, words, tuple(answer.output_ids), tuple(answer.logprobs))


def judge_floor(probes: Sequence[Probe]) -> None:
    """Refuse answers that the engine itself finds all but impossible.

    Raises:
        UnfitError: their mean log-probability is under the floor, or is not a number.
    """
    values = [value for probe in probes for value in probe.logprobs]
    mean = _mean(values)
    if not mean >= FLOOR:  # also true for not-a-number
        raise UnfitError(
            "The engine's answers are noise.",
            why=f"Its likeliest tokens have a mean log-probability of {mean:.2f}.\n"
            + "\n".join(f"{probe.prompt!r}: {probe.text!r}" for probe in probes),
            fix="Check that the weights are whole and of this model, and the engine's flags.",
        )


def judge(
    base: Sequence[Probe], others: Sequence[Probe], tolerance: float, *, language: bool = True
) -> None:
    """Compare the answers of one way with those of another; their tokens only if ``language``.

    Raises:
        UnfitError: they differ by more than rounding can explain.
    """
    answers = {probe.prompt: probe for probe in base}
    pairs = [(answers[probe.prompt], probe) for probe in others if probe.prompt in answers]
    if not pairs:
        return  # a record of other prompts: of another release of this program
    # By answer, not by token: one that differs at once gives few tokens to compare.
    gaps = [_mean(differences(one, two)) for one, two in pairs]
    mean, worst = _mean(gaps), max(gaps)
    agreeing = sum(
        one.output_ids[:AGREE_TOKENS] == two.output_ids[:AGREE_TOKENS] for one, two in pairs
    )
    unlike = language and 2 * agreeing < len(pairs)
    if not (mean <= tolerance and worst <= WORST * tolerance) or unlike:
        shown = [pair for _, pair in sorted(zip(gaps, pairs, strict=True), key=_gap)[:3]]
        raise UnfitError(
            f"The engine contradicts itself: {pairs[0][0].way} and {pairs[0][1].way} disagree.",
            why=f"Mean difference of log-probabilities {mean:.3f} (allowed {tolerance:g}),"
            f" at worst {worst:.3f} (allowed {WORST * tolerance:g});"
            f" {agreeing} of {len(pairs)} answers begin alike.\n"
            + "\n".join(_side_by_side(one, two) for one, two in shown),
            fix="Try another attention backend or release of the engine. If you are sure that"
            " this is right for the model, switch the check off: GENQ_HONESTY=false",
        )


def _gap(judged: tuple[float, object]) -> float:
    return -judged[0]


def differences(one: Probe, two: Probe) -> list[float]:
    """Return the differences of log-probability up to the first token that differs."""
    gaps = []
    for token, other, a, b in zip(
        one.output_ids, two.output_ids, one.logprobs, two.logprobs, strict=False
    ):
        gaps.append(abs(a - b))
        if token != other:
            break
    return gaps or [math.inf]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _side_by_side(one: Probe, two: Probe) -> str:
    return f"{one.prompt!r}\n  {one.way:>8}: {one.text!r}\n  {two.way:>8}: {two.text!r}"
