"""The dialect of llama.cpp's server, as the xllamacpp package embeds it (2026.10)."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
from typing import TYPE_CHECKING, Any

import orjson

from common.errors import EngineError
from common.installing import install
from common.model import locate_model, model_fingerprint, model_name
from consumer.engine.api import (
    Answer,
    EngineFacts,
    EngineLoad,
    EngineSpec,
    FinishReason,
    GenerateRequest,
    Http,
    Launch,
    Renderer,
)
from consumer.engine.launch import llamacpp_launch
from consumer.engine.promtext import total
from consumer.engine.sglang import count, token_ids

if TYPE_CHECKING:
    from pathlib import Path

SAMPLING_NAMES = {
    "max_tokens": "n_predict",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
    "stop": "stop",
}
_FINISH: dict[str, FinishReason] = {
    "eos": "stop",
    "word": "stop",
    "limit": "length",
    "none": "abort",  # it was cut off
}
_ASK_SECONDS = 30.0  # figures come between two steps, and a step on a busy CPU can be long


class LlamaCppEngine:
    """The small engine: runs anywhere, needs no GPU."""

    name = "llamacpp"

    def launch(self, spec: EngineSpec) -> Launch:
        """Return the launch line of the embedded server."""
        if importlib.util.find_spec("xllamacpp") is None:
            raise EngineError(
                "The embedded llama server is not installed.",
                why="--engine llamacpp needs the package xllamacpp.",
                fix=f"make setup    or: {install('local')}",
            )
        path = gguf_file(spec.model)
        return llamacpp_launch(spec, str(path), threads=len(os.sched_getaffinity(0)))

    def generate(self, request: GenerateRequest) -> tuple[str, dict[str, Any]]:
        """Return path and body of a generation; this dialect does not echo the request's id."""
        body: dict[str, Any] = {
            theirs: value
            for ours, theirs in SAMPLING_NAMES.items()
            if (value := getattr(request.sampling, ours)) is not None
        }
        if "stop" in body:
            body["stop"] = list(body["stop"])
        body |= {
            "prompt": list(request.input_ids),
            "seed": request.seed,
            "stream": False,
            "return_tokens": True,
            "cache_prompt": not request.fresh,
        }
        if request.logprobs:
            body["n_probs"] = 1
        return "/completion", body

    def read(self, body: bytes) -> Answer:
        """Parse an answer of /completion; see :class:`consumer.engine.api.Engine`."""
        answer = orjson.loads(body)
        try:
            kind = _FINISH[answer["stop_type"]]
            pairs = answer.get("completion_probabilities")
            detail = answer.get("stopping_word") or ""
            return Answer(
                rid=None,
                output_ids=token_ids(answer["tokens"]),
                text=str(answer["content"]),
                finish_reason=kind,
                prompt_tokens=count(answer["tokens_evaluated"]),
                completion_tokens=count(answer["tokens_predicted"]),
                cached_tokens=count(answer.get("timings", {}).get("cache_n", 0)),
                detail="the context is full" if answer.get("truncated") else str(detail),
                logprobs=[float(pair["logprob"]) for pair in pairs] if pairs else None,
                tells_cached="cache_n" in answer.get("timings", {}),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a whole answer of /completion: {error!r}") from error

    async def facts(self, http: Http, spec: EngineSpec) -> EngineFacts:
        """Read the server's properties."""
        props, models = await asyncio.gather(
            http.get("/props", _ASK_SECONDS), http.get("/v1/models", _ASK_SECONDS)
        )
        try:
            info = orjson.loads(props.required())
            meta = orjson.loads(models.required())["data"][0]["meta"]
            return EngineFacts(
                engine=self.name,
                version=_version(spec, info),
                model=model_name(spec.model),
                model_fingerprint=await asyncio.to_thread(model_fingerprint, spec.model),
                vocab_size=int(meta["n_vocab"]),
                context_tokens=int(info["default_generation_settings"]["n_ctx"]),
                max_running=int(info["total_slots"]),
                kv_tokens=None,  # each slot has its own share
                deterministic=int(info["total_slots"]) == 1,  # no company, no other steps
                prefix_cache=True,
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(
                "The server does not answer as llama.cpp's does.",
                why=f"/props and /v1/models: {error}",
                fix="Check --url and --engine.",
            ) from error

    async def load(self, http: Http) -> EngineLoad | None:
        """Sample /metrics and /slots.

        The token counter moves only when a request ends; what runs is added from the slots. The
        count of decode steps moves at every step, prefill included.
        """
        metrics, slots = await asyncio.gather(
            http.get("/metrics", _ASK_SECONDS), http.get("/slots", _ASK_SECONDS)
        )
        if not metrics.ok:
            return None
        try:
            return read_load(metrics.body.decode(), slots.body if slots.ok else b"[]")
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError):
            return None

    async def prepare(self, spec: EngineSpec) -> None:
        """Do nothing: the server has all that prompts need."""

    async def ready(self, http: Http) -> bool:
        """Ask /health: it is 503 while the model loads."""
        return (await http.get("/health", _ASK_SECONDS)).ok

    async def abort(self, http: Http, rid: str) -> None:
        """Do nothing: the server gives up a request when its connection closes."""

    async def forget(self, http: Http) -> bool:  # noqa: ARG002 - the protocol's signature
        """Return False: this server takes that per request (``fresh``)."""
        return False

    def renderer(self, spec: EngineSpec, http: Http) -> Renderer:  # noqa: ARG002 - the server holds the model
        """Return a renderer that asks the server, which has template and tokenizer."""
        from consumer.engine.llama_renderer import LlamaRenderer  # noqa: PLC0415 - loads only if used

        return LlamaRenderer(http)

    def lighter(self, spec: EngineSpec, facts: EngineFacts | None) -> None:
        """Return None: what it takes is settled by the model, the slots and the context alone."""


def gguf_file(model: str) -> Path:
    """Return the GGUF file that ``model`` names.

    A file is believed by its suffix or by its first bytes; whether it is whole, is not looked at.

    Raises:
        EngineError: it is not there, or it is something else.
    """
    path = locate_model(model)
    if path is not None and path.is_file():
        with path.open("rb") as file:
            if path.suffix == ".gguf" or file.read(4) == b"GGUF":
                return path
    raise EngineError(
        f"{model} is not there." if path is None else f"{model} is not a .gguf file.",
        why="llama.cpp serves one GGUF file of this machine.",
        fix="--model /path/to/model.gguf, or --model smollm2 for the small one.",
    )


def read_load(metrics: str, slots: bytes) -> EngineLoad:
    """Return the sample that the two answers make.

    Raises:
        ValueError: ``metrics`` are not this server's.
    """
    steps = total(metrics, "llamacpp:n_decode_total")
    if steps is None:
        raise ValueError("no llamacpp metrics")
    busy = [slot for slot in orjson.loads(slots) if slot.get("is_processing")]
    decoding = sum(int(slot["next_token"][0]["n_decoded"]) for slot in busy)
    usage = [slot.get("n_prompt_tokens", 0) / slot["n_ctx"] for slot in busy]
    return EngineLoad(
        running=int(total(metrics, "llamacpp:requests_processing") or 0),
        waiting=int(total(metrics, "llamacpp:requests_deferred") or 0),
        token_usage=max(usage, default=0.0),
        generated_tokens=int(total(metrics, "llamacpp:tokens_predicted_total") or 0) + decoding,
        retractions=0,
        work=int(steps + (total(metrics, "llamacpp:prompt_tokens_total") or 0)),
    )


def _version(spec: EngineSpec, props: dict[str, Any]) -> str:
    if spec.url is None:
        try:
            return importlib.metadata.version("xllamacpp")
        except importlib.metadata.PackageNotFoundError:
            pass
    return str(props.get("build_info", ""))
