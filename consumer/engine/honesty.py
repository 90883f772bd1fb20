"""Is an engine honest? It answers fixed prompts in three ways, which must agree with one another.

A build, a kernel or a setting can make an engine answer nonsense at full speed, with good health,
good lengths and good finish reasons. It shows when the engine is compared with itself: a prompt
read whole, the same with its prefix cached, and in a crowd are three paths through its code, and
lead to the same probabilities up to rounding.

Greedy answers with log-probabilities are compared token by token up to and including the first
difference: two near-equal candidates may change places by rounding, but their log-probabilities
stay near each other. What follows a difference says nothing, so it is not compared.

Which path was really taken is read from the counts of cached tokens in the answers
(:mod:`consumer.engine.honesty_paths`). Where the questions are too short for the engine's cache, as
with hybrid models, long texts are asked as well. A path that was not taken is told, and refuses
nothing.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from common.codec import dumps, loads
from common.errors import EngineError
from common.ids import new_nonce
from common.records import Sampling
from consumer.engine.api import (
    Engine,
    EngineFacts,
    EngineSpec,
    GenerateRequest,
    Http,
    Renderer,
    check_ids,
)
from consumer.engine.honesty_paths import Asked, Paths, Probe, paths_of, reused
from consumer.engine.honesty_texts import QUESTIONS, TEXTS
from consumer.engine.life import UnfitError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = structlog.get_logger(__name__)

TOKENS = 6
CROWD = 16
TOLERANCE = 0.25  # mean difference of log-probabilities; rounding in bfloat16 makes some 0.05
WORST = 4.0  # and of a single answer: so many times that
AGREE_TOKENS = 3  # half of the prompts must begin with the same tokens
FLOOR = -6.0  # mean log-probability of the likeliest tokens: lower is noise, not language
_SECONDS = 180.0


class Honesty:
    """The check, for :class:`consumer.engine.supervisor.Supervisor`.

    ``record`` holds the answers of the engine that was accepted first; a ``reference`` from
    elsewhere (another engine of the same run) takes its place. Every later incarnation must agree
    with it, and every incarnation with itself. ``answers`` holds those of the engine that was
    accepted last: it serves now.
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
        self.answers: tuple[Probe, ...] = ()  # of the engine that was accepted last
        self.paths: Paths | None = None  # those that it has taken
        self.facts: EngineFacts | None = None  # and what it is
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
        asked = await ask(engine, http, spec, facts, ids=self._ids)
        first, language = asked.uncached, self._ids is None
        if language:
            judge_floor(first)
        for others in (asked.cached, asked.crowd):
            judge(first, others, self.tolerance, language=language)
        # By themselves, too: those that were read whole again would hide what is wrong with these.
        served = [probe for probe in asked.cached if reused(probe, asked.shared)]
        judge(first, served, self.tolerance, language=language)
        if self.record:
            sides = ("first", "now")
            judge(self.record, first, 2 * self.tolerance, language=language, sides=sides)
        else:
            self.record = first
        self.answers = first
        self.facts = facts
        self.paths = paths_of(asked, prefix_cache=facts.prefix_cache)
        log.info("engine.honest", answers=[probe.text for probe in first], paths=str(self.paths))
        for doubt in self.paths.doubts:
            log.warning("the honesty check left a path out", what=doubt)


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
                cached_tokens=_count(one.get("cached_tokens")),
                prompt_tokens=_count(one.get("prompt_tokens")),
            )
            for one in loads(data)
        )
    except (AttributeError, ValueError, TypeError, KeyError):
        return ()


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


async def ask(
    engine: Engine,
    http: Http,
    spec: EngineSpec,
    facts: EngineFacts,
    *,
    ids: Mapping[str, Sequence[int]] | None = None,
) -> Asked:
    """Return the answers to the prompts of the check, or to ``ids``.

    Raises:
        UnfitError: the tokenizer makes a token of a prompt that the model does not have.
        EngineError: the engine gives no answers to judge.
    """
    talk = _Talk(engine, http, facts)
    forgotten = await engine.forget(http)
    if ids is not None:
        await talk.twice(ids)
    else:
        renderer = engine.renderer(spec, http)
        await talk.twice(await _rendered(renderer, QUESTIONS))
        if facts.prefix_cache is not False and not talk.reused:
            long = await _rendered(renderer, TEXTS)
            limit = facts.context_tokens - TOKENS
            await talk.twice({name: some for name, some in long.items() if len(some) <= limit})
    await engine.forget(http)
    crowd = await talk.crowd()
    shared = talk.shared()
    return Asked(tuple(talk.uncached), tuple(talk.cached), crowd, shared, forgotten)


async def _rendered(renderer: Renderer, texts: Mapping[str, str]) -> dict[str, list[int]]:
    return {
        name: await renderer.render([{"role": "user", "content": text}], thinking=False)
        for name, text in texts.items()
    }


@dataclass(slots=True)
class _Talk:
    """What was asked of an engine, and what it answered."""

    engine: Engine
    http: Http
    facts: EngineFacts
    prompts: dict[str, Sequence[int]] = field(default_factory=dict)
    uncached: list[Probe] = field(default_factory=list)
    cached: list[Probe] = field(default_factory=list)

    async def twice(self, prompts: Mapping[str, Sequence[int]]) -> None:
        """Ask each prompt, and the same again at once: a small cache may not hold two of them."""
        for name, ids in prompts.items():
            _refuse_unknown_tokens(name, ids, self.facts)
        self.prompts |= prompts
        for name in prompts:
            self.uncached.append(await self._one(name, "uncached"))
            self.cached.append(await self._one(name, "cached"))

    async def crowd(self) -> tuple[Probe, ...]:
        """Ask all prompts at once, some of them several times."""
        names = list(self.prompts)
        size = max(len(names), min(CROWD, self.facts.max_running))
        asks = (self._one(names[n % len(names)], "crowd") for n in range(size))
        return tuple(await asyncio.gather(*asks))

    async def _one(self, name: str, way: str) -> Probe:
        return await _probe(self.engine, self.http, name, self.prompts[name], way)

    @property
    def reused(self) -> bool:
        """Whether a prompt that was asked again was served from the cache."""
        shared = self.shared()
        return any(reused(probe, shared) for probe in self.cached)

    def shared(self) -> dict[str, int]:
        """Return how many tokens at its beginning each prompt has in common with another one."""
        prompts = self.prompts
        return {
            name: max((_common(ids, prompts[one]) for one in prompts if one != name), default=0)
            for name, ids in prompts.items()
        }


def _refuse_unknown_tokens(name: str, ids: Sequence[int], facts: EngineFacts) -> None:
    """Refuse ids that would kill the server, at each of its starts."""
    try:
        check_ids(ids, facts.vocab_size)
    except ValueError as error:
        raise UnfitError(
            f"The tokenizer does not belong to the model {facts.model}.",
            why=f"It makes tokens of a test prompt that the model does not have: {error}.\n"
            f"{name!r}",
            fix="Serve the model with the tokenizer files that came with its weights.",
        ) from error


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


async def _probe(
    engine: Engine, http: Http, name: str, input_ids: Sequence[int], way: str
) -> Probe:
    request = GenerateRequest(
        rid=new_nonce() * 2,
        input_ids=input_ids,
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
    logprobs = answer.logprobs or []
    if not logprobs:
        raise EngineError("The engine gives no log-probabilities, so it cannot be checked.")
    if len(logprobs) != len(answer.output_ids):
        raise EngineError(
            "The engine gives log-probabilities of only some tokens, so it cannot be checked.",
            why=f"{len(logprobs)} of them for {len(answer.output_ids)} tokens, asked {name!r}.",
            fix="Releases that speculate may do so: use a newer one, or serve without speculation.",
        )
    return Probe(
        prompt=name,
        way=way,
        text=answer.text if answer.text is not None else str(answer.output_ids),
        output_ids=tuple(answer.output_ids),
        logprobs=tuple(logprobs),
        cached_tokens=answer.cached_tokens if answer.tells_cached else None,
        prompt_tokens=len(input_ids),
    )


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
    base: Sequence[Probe],
    others: Sequence[Probe],
    tolerance: float,
    *,
    language: bool = True,
    sides: tuple[str, str] | None = None,
) -> None:
    """Compare the answers of one way with those of another; their tokens only if ``language``.

    ``sides``: what the two are called, where they are not of one engine asked in two ways.

    Raises:
        UnfitError: they differ by more than rounding can explain.
    """
    answers = {probe.prompt: probe for probe in base}
    pairs = [(answers[probe.prompt], probe) for probe in others if probe.prompt in answers]
    if not pairs:
        return  # nothing to compare, or a record of another release's prompts
    # By answer, not by token: one that differs at once gives few tokens to compare.
    gaps = [_mean(differences(one, two)) for one, two in pairs]
    mean, worst = _mean(gaps), max(gaps)
    agreeing = sum(
        one.output_ids[:AGREE_TOKENS] == two.output_ids[:AGREE_TOKENS] for one, two in pairs
    )
    # Of one answer alone the beginning may differ by rounding; of several, not of most.
    unlike = language and len(pairs) > 1 and 2 * agreeing < len(pairs)
    if not (mean <= tolerance and worst <= WORST * tolerance) or unlike:
        shown = [pair for _, pair in sorted(zip(gaps, pairs, strict=True), key=_gap)[:3]]
        one, two = sides or (pairs[0][0].way, pairs[0][1].way)
        said = "answers otherwise than before" if sides else "contradicts itself"
        raise UnfitError(
            f"The engine {said}: {one} and {two} disagree.",
            why=f"Mean difference of log-probabilities {mean:.3f} (allowed {tolerance:g}),"
            f" at worst {worst:.3f} (allowed {WORST * tolerance:g});"
            f" {agreeing} of {len(pairs)} answers begin alike.\n"
            + "\n".join(_side_by_side(pair, (one, two)) for pair in shown),
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


def _side_by_side(pair: tuple[Probe, Probe], sides: tuple[str, str]) -> str:
    said = zip(sides, pair, strict=True)
    return f"{pair[0].prompt!r}\n" + "\n".join(f"  {who:>8}: {one.text!r}" for who, one in said)
