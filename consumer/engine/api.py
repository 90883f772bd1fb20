"""The one interface between the consumer and whatever generates: records in, records out.

An :class:`Engine` knows one server's dialect and nothing else: how it is launched, what a request
and an answer look like, where its figures are. It holds no connection and no state, so one
instance serves any number of servers. Life and death are :mod:`consumer.engine.supervisor`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from common.records import Sampling

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What to serve, where and with what: everything that a launch depends on.

    ``url`` set: attach to a server that somebody else runs; nothing is launched and nothing killed.
    """

    model: str
    gpu: int | None
    url: str | None
    port: int
    api_key: str
    state_dir: Path
    host: str = "127.0.0.1"
    max_running: int | None = None
    context: int | None = None
    flags: tuple[str, ...] = ()
    reproducible: bool = False  # launch it so that equal seeds give equal tokens
    window: int | None = None  # most requests in flight; None: as the engine's limit has it
    profile: str = ""  # the name of the profile that gave flags and window

    @property
    def base_url(self) -> str:
        """Where the engine answers, without a slash at the end."""
        return (self.url or f"http://{self.host}:{self.port}").rstrip("/")

    @property
    def name(self) -> str:
        """A file-name-safe word for this engine's place: ``gpu3``, or ``port39871`` without one."""
        return f"port{self.port}" if self.gpu is None else f"gpu{self.gpu}"


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line and what it needs in its environment. Secrets are only ever in ``env``."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What was asked of an engine and what came of it. None: it does not say."""

    asked_running: int | None = None  # requests at once, as asked; EngineFacts has the effective
    state_slots: int | None = None  # of models with linear-attention layers
    slots_per_request: int | None = None
    kv_tokens: int | None = None
    free_bytes: int | None = None  # of GPU memory, after the start
    weight_bytes: int | None = None
    mem_fraction: float | None = None
    capped: str = ""  # the engine's own words on why fewer run than were asked for


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a ready engine says of itself. These, not the flags asked for, size the window."""

    engine: str  # sglang | llamacpp
    version: str
    model: str
    model_fingerprint: str  # of tokenizer and template; "" where they cannot be seen
    vocab_size: int
    context_tokens: int  # longest prompt and answer together, per request
    max_running: int  # how many requests run at once; more wait inside the engine
    kv_tokens: int | None  # room for tokens of all running requests; None: no such limit is known
    deterministic: bool = False  # equal seeds give equal tokens, whatever else runs beside
    capacity: Capacity = Capacity()
    window: int | None = None  # most requests in flight, where a profile says so
    prefix_cache: bool | None = None  # prompts' prefixes are kept for later ones; None: not known


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """A sample of the engine's own figures; may be stale by one long step.

    ``generated_tokens``, ``retractions`` and ``work`` only grow while the engine lives: use
    differences. ``work`` moves at any sign of work, prefill included; its unit is of no meaning.
    ``whole``: all three were read. Where they were not, they are lower than they should be, and
    only a growth of ``work`` says anything.
    """

    running: int
    waiting: int
    token_usage: float  # 0 to 1
    generated_tokens: int
    retractions: int
    work: int = 0
    state_usage: float | None = None  # 0 to 1, of the state pool; None: it has none
    accept_length: float | None = None  # tokens that a verification of drafts yields
    whole: bool = True


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation, token in and token out.

    ``rid`` has 32 hexadecimal characters: all of one length, because an engine may match the id of
    an abort by prefix. ``sampling.max_tokens`` is resolved. ``seed`` wins over ``sampling.seed``.
    """

    rid: str
    input_ids: Sequence[int]
    sampling: Sampling
    seed: int
    logprobs: bool = False  # also return the log-probability of each generated token
    fresh: bool = False  # ask that no cached prefix be used, where that can be asked per request


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's answer, well-formed but not judged: that is the verdict's part."""

    rid: str | None  # as the engine echoes it; None where its dialect has no such echo
    output_ids: list[int]
    text: str | None  # None where the engine returns only tokens
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    detail: str  # the engine's words about an abort, or what it stopped at
    logprobs: list[float] | None = None  # of output_ids, where they were asked for
    tells_cached: bool = True  # False: it does not say how many were cached, and 0 stands for that


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of one HTTP call, whatever it was.

    ``status`` None: no answer arrived whole (refused, reset, cut off, out of time) and ``error``
    says how. ``sent`` False: the request never reached the server, so nothing was begun there.
    """

    status: int | None
    body: bytes
    error: str = ""
    sent: bool = True
    retry_after_seconds: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the server answered 200."""
        return self.status == 200

    def required(self) -> bytes:
        """Return the body of a 200 answer.

        Raises:
            ValueError: it is none; says what came instead.
        """
        if not self.ok:
            raise ValueError(self.error or f"status {self.status}: {self.body[:300]!r}")
        return self.body


class Http(Protocol):
    """What an :class:`Engine` needs of a connection; :class:`consumer.engine.http.EngineHttp`."""

    async def post(self, path: str, body: Mapping[str, Any], timeout_seconds: float) -> Reply:
        """Send ``body`` as JSON, once. Never raises for a fault of the network."""
        ...

    async def get(self, path: str, timeout_seconds: float) -> Reply:
        """Fetch ``path``. Never raises for a fault of the network."""
        ...


class Renderer(Protocol):
    """The model's own chat template and tokenizer."""

    async def load(self) -> None:
        """Load what it needs from this machine; done already after the first time.

        Raises:
            EngineError: that cannot be loaded, with the way out.
        """
        ...

    async def render(
        self, messages: Sequence[Mapping[str, Any]], *, thinking: bool | None
    ) -> list[int]:
        """Return the prompt's token ids, the opening of the answer's turn included.

        Raises:
            ValueError: the template or the tokenizer refuses these messages (a fault of the row).
            EngineError: the engine that renders could not be asked.
        """
        ...

    async def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, special tokens left out.

        Raises:
            EngineError: the engine that decodes could not be asked.
        """
        ...

    async def encode(self, text: str) -> list[int]:
        """Return the ids of a text by itself; special tokens that it spells are such tokens.

        Raises:
            EngineError: the engine that tokenizes could not be asked.
        """
        ...

    async def template(self) -> str:
        """Return the text of the chat template; "" where it cannot be seen.

        Raises:
            EngineError: the engine that renders could not be asked.
        """
        ...


class Engine(Protocol):
    """One server's dialect."""

    @property
    def name(self) -> str:
        """``sglang`` or ``llamacpp``."""
        ...

    def launch(self, spec: EngineSpec) -> Launch:
        """Return how to start the server that ``spec`` describes.

        Raises:
            EngineError: the model or the engine is not there, with the step that brings it.
        """
        ...

    def generate(self, request: GenerateRequest) -> tuple[str, dict[str, Any]]:
        """Return path and body of a generation; only fields that the server is known to take."""
        ...

    def read(self, body: bytes) -> Answer:
        """Parse a 200 answer.

        Raises:
            ValueError: it is not a whole, well-formed answer. Any bytes may be given.
        """
        ...

    async def prepare(self, spec: EngineSpec) -> None:
        """Load here what the first prompt will need; called while the server starts.

        Raises:
            Exception: what its use would raise, too; so a caller may leave it at that.
        """
        ...

    async def facts(self, http: Http, spec: EngineSpec) -> EngineFacts:
        """Ask a ready server what it is.

        Raises:
            EngineError: it does not answer, or not in this dialect.
        """
        ...

    async def load(self, http: Http) -> EngineLoad | None:
        """Return a sample of its figures, or None if it does not answer in a few seconds."""
        ...

    async def ready(self, http: Http) -> bool:
        """Return whether the server has loaded its model and takes requests."""
        ...

    async def abort(self, http: Http, rid: str) -> None:
        """Ask that ``rid`` be given up. Promises nothing: closing the connection also counts."""
        ...

    async def forget(self, http: Http) -> bool:
        """Drop cached prefixes; False if the server cannot or would not."""
        ...

    def renderer(self, spec: EngineSpec, http: Http) -> Renderer:
        """Return what renders for this model; what is heavy loads at first use, and stays."""
        ...

    def lighter(self, spec: EngineSpec, facts: EngineFacts | None) -> tuple[EngineSpec, str] | None:
        """Return a spec that takes one step less of the GPU's memory, and the change in words.

        ``facts``: of its last life that came so far. None: there is nothing that could be lowered.
        """
        ...


def check_ids(input_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse token ids that the model does not have: a single one kills some engines.

    Raises:
        ValueError: the prompt is empty, or names the first bad id and its place.
    """
    if not input_ids:
        raise ValueError("the prompt has no tokens")
    if min(input_ids) >= 0 and max(input_ids) < vocab_size:
        return
    place, bad = next((n, i) for n, i in enumerate(input_ids) if not 0 <= i < vocab_size)
    raise ValueError(f"token id {bad} at position {place} is not in the vocabulary of {vocab_size}")
