"""What a round asks its engines: a run's own prompts, a file's, or random tokens of given lengths.

One part is for the search, another is held out for the confirmation. Within a trial no prompt
comes twice (but for the samples of a row), or a cache would serve what no cache will in the run:
where a sample is at its end, its prompts come again with another beginning.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from common.codec import decompress, loads
from common.errors import EngineError, InputError, UsageError
from common.objectstore import RunPaths
from common.records import Row, Sampling
from consumer.engine.api import GenerateRequest, check_ids
from consumer.engine.hf_renderer import HfRenderer
from consumer.generation.conversation import Conversation
from consumer.generation.render import Prompts
from consumer.generation.request import room_for, sampling_of
from consumer.leases.rundata import read_manifest, read_row, read_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from common.ids import RunName
    from common.objectstore import ObjectStore
    from common.records import RunManifest
    from consumer.engine.api import EngineFacts

ROWS = 2000  # of each part
ASSUMED_OUTPUT = 1024  # tokens of an answer, where nothing says how long they are
FILE_BYTES = 1 << 30
_MARGIN = 10  # ids at both ends of a vocabulary that random prompts leave out: control tokens


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in tokens, and how often it is asked (a run's samples)."""

    input_ids: Sequence[int]
    sampling: Sampling
    times: int = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """Prompts for a round. ``random_tokens``: they are drawn, of ``(prompt, answer)`` tokens."""

    search: tuple[Prompt, ...] = ()
    held_out: tuple[Prompt, ...] = ()
    random_tokens: tuple[int, int] | None = None
    output_tokens: int | None = None  # of an answer on average, where that is known
    about: str = ""

    @property
    def prompt_tokens(self) -> int:
        """Of a prompt, on average."""
        if self.random_tokens:
            return self.random_tokens[0]
        some = self.search
        return max(1, round(sum(len(one.input_ids) for one in some) / max(1, len(some))))

    def stream(self, facts: EngineFacts, *, held_out: bool, seed: int) -> Iterator[Prompt]:
        """Yield prompts for one trial; ends where the sample does."""
        if self.random_tokens is not None:
            yield from _random(self.random_tokens, facts.vocab_size, seed)
            return
        for prompt in self.held_out if held_out else self.search:
            for _ in range(prompt.times):
                yield prompt


class Feed:
    """Makes requests of prompts. The first wave's answers are cut at random places.

    Requests that begin together would end together, again and again; cut so, a closed loop is in
    its steady state as soon as the first wave has been read in.
    """

    def __init__(
        self,
        prompts: Callable[[], Iterator[Prompt]],
        facts: EngineFacts,
        *,
        wave: int,
        output_tokens: int | None,
    ) -> None:
        """Take where prompts come from, anew for each pass, and the size of the first wave."""
        self._again = prompts
        self._prompts = prompts()
        self._facts = facts
        self._wave = wave
        self._output_tokens = output_tokens
        self._rng = random.Random(1)
        self._passes = 0
        self._mark: int | None = None  # a token of the sample's own, to tell passes apart

    def next(self) -> GenerateRequest | None:
        """Return the next request; None: no prompt fits the engine."""
        request = self._next()
        if request is None:
            self._passes += 1
            self._prompts = self._again()
            request = self._next()
        return request

    def _next(self) -> GenerateRequest | None:
        for prompt in self._prompts:
            ids = self._as_new(prompt.input_ids)
            room = room_for(ids, self._facts)
            try:
                check_ids(ids, self._facts.vocab_size)
            except ValueError:
                continue
            if room >= 1:
                return self._request(prompt, ids, room)
        return None

    def _as_new(self, ids: Sequence[int]) -> Sequence[int]:
        """Return a prompt as this pass asks it: a cache knows what all of a pass share, no more."""
        if self._mark is None and ids:
            self._mark = ids[-1]
        if not self._passes or self._mark is None:
            return ids
        return (*ids[:1], *[self._mark] * self._passes, *ids[1:])

    def _request(self, prompt: Prompt, ids: Sequence[int], room: int) -> GenerateRequest:
        limit = min(room, prompt.sampling.max_tokens or room)
        if self._wave > 0:
            self._wave -= 1
            limit = min(limit, self._rng.randint(1, max(1, self._output_tokens or limit)))
        seed = self._rng.getrandbits(31)
        return GenerateRequest(
            rid=secrets.token_hex(16),
            input_ids=ids,
            sampling=replace(prompt.sampling, max_tokens=max(1, limit), seed=seed),
            seed=seed,
        )


def parse_random(text: str) -> tuple[int, int]:
    """Return the lengths of ``random:256:256``: prompt and answer.

    Raises:
        UsageError: it is not written so.
    """
    parts = text.split(":")
    if len(parts) == 3 and all(part.isdigit() and int(part) > 0 for part in parts[1:]):
        return int(parts[1]), int(parts[2])
    raise UsageError(
        f"--prompts cannot be {text}.",
        why="Random prompts need two lengths: of the prompt and of the answer, in tokens.",
        fix="--prompts random:256:256",
    )


def random_sample(text: str) -> Sample:
    """Return a sample of random token ids, lengths as in :func:`parse_random`."""
    lengths = parse_random(text)
    about = f"random tokens, {lengths[0]} in, {lengths[1]} out"
    return Sample(random_tokens=lengths, output_tokens=lengths[1], about=about)


def random_ids(tokens: int, vocab_size: int, seed: int) -> list[int]:
    """Return token ids, the same for the same seed."""
    low, high = min(_MARGIN, vocab_size // 4), max(vocab_size - _MARGIN, vocab_size // 2)
    return random.Random(seed).choices(range(low, high), k=tokens)


def _random(lengths: tuple[int, int], vocab_size: int, seed: int) -> Iterator[Prompt]:
    sampling = Sampling(max_tokens=lengths[1], temperature=1.0)
    number = seed << 32
    while True:
        yield Prompt(random_ids(lengths[0], vocab_size, number), sampling)
        number += 1


async def file_sample(path: Path, model: str) -> Sample:
    """Return a sample of a file of JSON lines: ``messages``, ``prompt``, ``text``, ``input_ids``.

    Raises:
        InputError: it cannot be read, or a line is none of that; names it.
        EngineError: the model's tokenizer is not there.
    """
    rows = [_file_row(line, f"{path}:{n}", n) for n, line in _lines(path)]
    if not rows:
        raise InputError(f"{path} holds no prompts.", fix="--prompts random:256:256")
    prompts = await _rendered(rows, model, thinking=None)
    half = max(1, len(prompts) // 2)
    known = [one.sampling.max_tokens for one in prompts if one.sampling.max_tokens]
    return Sample(
        search=prompts[:half],
        held_out=prompts[half:] or prompts,
        output_tokens=round(sum(known) / len(known)) if known else None,
        about=f"{len(prompts):,} prompts of {path.name}",
    )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        data = path.read_bytes()
        if data[:4] == b"\x28\xb5\x2f\xfd":  # zstd
            data = decompress(data, limit_bytes=FILE_BYTES)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read.", why=str(error), fix="--prompts random:256:256"
        ) from error
    lines = [line for line in enumerate(data.splitlines(), start=1) if line[1].strip()]
    yield from lines[: 2 * ROWS]


def _file_row(line: bytes, place: str, number: int) -> Row | Prompt:
    try:
        values: dict[str, Any] = loads(line)
        limit = values.get("max_tokens")
        sampling = Sampling(max_tokens=None if limit is None else int(limit))
        if "input_ids" in values:
            return Prompt([int(i) for i in values["input_ids"]], sampling)
        messages = values.get("messages")
        if messages is None:
            text = values["prompt"] if "prompt" in values else values["text"]
            messages = [{"role": "user", "content": str(text)}]
        return Row(i=number, messages=list(messages), sampling=sampling)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{place} is no prompt.",
            why=f"{error!r}: a line has messages, prompt, text or input_ids.",
            fix="Load the data set as a run, which takes more shapes, and give --run.",
        ) from error


async def run_sample(store: ObjectStore, run: RunName, model: str, *, mean: int | None) -> Sample:
    """Return a sample of a run's own rows; ``mean``: tokens of its answers so far.

    Blocks on the store for some shards; those of the run's second half are held out.

    Raises:
        StoreError: they cannot be read.
        EngineError: the model's tokenizer is not there.
    """
    path = RunPaths(run).run_json
    manifest = read_manifest(store.get(path), path)
    shards = len(manifest.shards)
    middle = (shards + 1) // 2
    rows = list(_rows(store, manifest, range(middle)))
    held = list(_rows(store, manifest, range(middle, shards)))
    if not held:
        half = max(1, len(rows) // 2)
        rows, held = rows[:half], rows[half:] or rows
    settings = manifest.settings

    async def prompts(some: list[Row]) -> tuple[Prompt, ...]:
        own = [replace(row, sampling=sampling_of(row, settings)) for row in some]
        return await _rendered(own, model, thinking=settings.thinking, times=settings.samples)

    return Sample(
        search=await prompts(rows),
        held_out=await prompts(held),
        output_tokens=mean,  # a limit would say little: the defaults' trial then tells
        about=f"{len(rows) + len(held):,} of the {manifest.rows:,} rows of {run}",
    )


def _rows(store: ObjectStore, manifest: RunManifest, shards: Iterable[int]) -> Iterator[Row]:
    left = ROWS
    for shard in shards:
        if left <= 0:
            return
        key = RunPaths(manifest.run).prompts(manifest.fingerprint, shard)
        lines = read_shard(store.get(key), manifest.shards[shard], key)[:left]
        left -= len(lines)
        yield from (read_row(line) for line in lines)


async def _rendered(
    rows: Sequence[Row | Prompt], model: str, *, thinking: bool | None, times: int = 1
) -> tuple[Prompt, ...]:
    """Return the prompts of rows; those that the template refuses are left out."""
    prompts = Prompts(HfRenderer(model))
    found: list[Prompt] = []
    for row in rows:
        if isinstance(row, Prompt):
            found.append(row)
            continue
        talk = Conversation(row.messages, await prompts.marks())
        if talk.open:
            try:
                ids = await prompts.render(talk.prompt, thinking=thinking)
            except ValueError:
                continue
            found.append(Prompt(ids, row.sampling, times))
    if not found:
        raise EngineError(
            "No prompt of the sample can be rendered.",
            why=f"The chat template of {model} refuses all {len(rows):,}.",
            fix="Check that the model is the run's: gen-producer status RUN",
        )
    return tuple(found)
