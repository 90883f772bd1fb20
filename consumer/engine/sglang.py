"""SGLang's dialect, as its real servers spoke it (0.5.17; what differs elsewhere is in tables)."""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
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
    Reply,
)
from consumer.engine.launch import lighter_sglang, sglang_launch
from consumer.engine.process import log_path
from consumer.engine.promtext import samples, total
from consumer.engine.sglang_boot import Boot, boot_of_log, capacity_of
from consumer.engine.sglang_flags import (
    LOADS,
    SERVER_INFO,
    TEXT_ONLY,
    flags_for,
    installed_version,
)
from consumer.engine.sglang_server import TEXT_ONLY_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.records import Sampling
    from consumer.engine.hf_renderer import HfRenderer

# Our names, SGLang's names. A name that it does not know ends in a bare 500, so nothing else goes.
SAMPLING_NAMES = {
    "max_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "stop": "stop",
}
_ASK_SECONDS = 10.0
_NOT_FOUND = 404
_FLUSH = "/flush_cache?timeout=1"  # seconds that it waits for what runs; old releases do not
_READY_SECONDS = 30.0
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


@dataclass(frozen=True, slots=True)
class _Renderer:
    fingerprint: str | None  # of the files before they were loaded; None: nobody has looked
    renderer: HfRenderer


class SglangEngine:
    """The default engine."""

    name = "sglang"

    def __init__(self) -> None:
        self._renderers: dict[str, _Renderer] = {}  # by model: a tokenizer loads once

    def launch(self, spec: EngineSpec) -> Launch:
        """Return the launch line; the key travels in the environment."""
        if importlib.util.find_spec("sglang") is None:
            raise EngineError(
                "SGLang is not installed in this Python.",
                why="--engine sglang starts it as a child process.",
                fix=f"{install('sglang')}, or attach to a running server with --url",
            )
        path = locate_model(spec.model)
        flags = flags_for(installed_version(), spec.flags)
        launch = sglang_launch(spec, spec.model if path is None else str(path), flags)
        if TEXT_ONLY in spec.flags and TEXT_ONLY not in flags:
            return replace(launch, env={**launch.env, TEXT_ONLY_VARIABLE: "1"})
        return launch

    def generate(self, request: GenerateRequest) -> tuple[str, dict[str, Any]]:
        """Return path and body of a generation."""
        body: dict[str, Any] = {
            "rid": request.rid,
            "input_ids": list(request.input_ids),
            "sampling_params": sampling_params(request.sampling, request.seed),
            "stream": False,
        }
        if request.logprobs:
            body["return_logprob"] = True
        return "/generate", body

    def read(self, body: bytes) -> Answer:
        """Parse an answer of /generate; see :class:`consumer.engine.api.Engine`."""
        answer = orjson.loads(body)
        try:
            meta = answer["meta_info"]
            reason = meta["finish_reason"]
            kind = _FINISH[reason["type"]]
            ids = answer.get("output_ids") if kind == "abort" else answer["output_ids"]
            pairs = meta.get("output_token_logprobs")
            return Answer(
                rid=str(meta["id"]),
                output_ids=token_ids(ids or []),
                text=answer.get("text"),
                finish_reason=kind,
                prompt_tokens=count(meta.get("prompt_tokens", 0)),
                completion_tokens=count(meta.get("completion_tokens", 0)),
                cached_tokens=count(meta.get("cached_tokens", 0)),
                detail=_detail(reason),
                logprobs=[float(pair[0]) for pair in pairs] if pairs else None,
                tells_cached="cached_tokens" in meta,
            )
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not a whole answer of /generate: {error!r}") from error

    async def facts(self, http: Http, spec: EngineSpec) -> EngineFacts:
        """Read what the server resolved its arguments to."""
        reply = await _first(http, SERVER_INFO)
        try:
            info: dict[str, Any] = orjson.loads(reply.required())
            state = (info.get("internal_states") or [{}])[0]
            running = state.get("effective_max_running_requests_per_dp")
            boot = Boot() if spec.url else await asyncio.to_thread(boot_of_log, log_path(spec))
            config = await asyncio.to_thread(model_config, spec.model, str(info["model_path"]))
            fingerprint = await asyncio.to_thread(model_fingerprint, spec.model)
            self._renderer(spec, fingerprint)  # what renders is what runs are compared with
            return EngineFacts(
                engine=self.name,
                version=str(info.get("version", "")),
                model=model_name(spec.model),
                model_fingerprint=fingerprint,
                vocab_size=int(config["vocab_size"]),
                context_tokens=int(info.get("context_length") or await _context(http, info)),
                max_running=int(running or info["max_running_requests"])
                * int(info.get("dp_size") or 1),
                kv_tokens=info.get("max_total_num_tokens"),
                deterministic=bool(info.get("enable_deterministic_inference")),
                capacity=capacity_of(info, boot),
                window=spec.window,
                prefix_cache=_prefix_cache(info),
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise EngineError(
                "The server does not answer as SGLang does.",
                why=f"{SERVER_INFO[0]}: {error}",
                fix="Check --url and --engine; releases from 0.5.10 on are known to work.",
            ) from error

    async def load(self, http: Http) -> EngineLoad | None:
        """Sample /v1/loads and, where the server has them, its counters."""
        loads, metrics = await asyncio.gather(
            _first(http, LOADS), http.get("/metrics", _ASK_SECONDS)
        )
        if not loads.ok:
            return None
        try:
            load = read_load(loads.body, metrics.body.decode() if metrics.ok else "")
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError):
            return None  # another release may shape it otherwise
        # Somebody else's server may run without metrics; any other answer is a failed reading.
        return load if metrics.ok or metrics.status == _NOT_FOUND else replace(load, whole=False)

    async def ready(self, http: Http) -> bool:
        """Ask /health: it is 503 until the warm-up request has passed."""
        return (await http.get("/health", _READY_SECONDS)).ok

    async def abort(self, http: Http, rid: str) -> None:
        """Abort by id. The server matches by prefix: never send a shortened id."""
        if len(rid) == 32:
            await http.post("/abort_request", {"rid": rid}, _ASK_SECONDS)

    async def forget(self, http: Http) -> bool:
        """Flush the radix cache; refused while anything runs, if only for a moment more."""
        return (await http.post(_FLUSH, {}, _ASK_SECONDS)).ok

    async def prepare(self, spec: EngineSpec) -> None:
        """Load the tokenizer: some three seconds, which a starting server leaves us."""
        if locate_model(spec.model) is not None:  # else the server is fetching it now
            fingerprint = await asyncio.to_thread(model_fingerprint, spec.model)
            await self._renderer(spec, fingerprint).load()

    def renderer(self, spec: EngineSpec, http: Http) -> Renderer:  # noqa: ARG002 - local files suffice
        """Return the renderer from the model's own folder, as :meth:`facts` found it last."""
        return self._renderer(spec)

    def _renderer(self, spec: EngineSpec, fingerprint: str | None = None) -> HfRenderer:
        """Return the model's renderer; a new one where the folder's files are others than before.

        Templates are mended in place, and folders are still being copied as servers start.
        """
        from consumer.engine.hf_renderer import HfRenderer  # noqa: PLC0415 - loads only if used

        path = locate_model(spec.model)
        model = spec.model if path is None else str(path)
        kept = self._renderers.get(model)
        if kept is None or fingerprint not in (None, kept.fingerprint):
            kept = self._renderers[model] = _Renderer(fingerprint, HfRenderer(model))
        return kept.renderer

    def lighter(self, spec: EngineSpec, facts: EngineFacts | None) -> tuple[EngineSpec, str] | None:
        """Lower the share of memory taken at the start, or how many requests run at once."""
        return lighter_sglang(
            spec,
            fraction=facts.capacity.mem_fraction if facts else None,
            running=facts.max_running if facts else None,
        )


def sampling_params(sampling: Sampling, seed: int) -> dict[str, Any]:
    """Return the settings under SGLang's names; those that are None stay away."""
    params = {
        theirs: value
        for ours, theirs in SAMPLING_NAMES.items()
        if (value := getattr(sampling, ours)) is not None
    }
    if "stop" in params:
        params["stop"] = list(params["stop"])
    return params | {"sampling_seed": seed}


def read_load(loads: bytes, metrics: str) -> EngineLoad:
    """Return the sample that the two answers make.

    Raises:
        ValueError: ``loads`` is not an answer of /v1/loads.
    """
    answer = orjson.loads(loads)
    ranks = answer["loads"] if isinstance(answer, dict) and "loads" in answer else answer
    if not isinstance(ranks, list) or not ranks:
        raise ValueError("no loads")

    def over(name: str, old: str = "") -> list[float]:
        return [float(rank.get(name, rank.get(old, 0)) or 0) for rank in ranks]

    # Steps and tokens decoded so far, published every 15 steps; absent before the first.
    moments = [rank.get("decode_moments") or [0, 0] for rank in ranks]
    decoded = sum(float(moment[1]) for moment in moments)
    prefilled = sum(over("total_prefill_uncached_tokens"))
    counted = total(metrics, "sglang:realtime_tokens_total", 'mode="decode"')
    if counted is None:
        counted = total(metrics, "sglang:generation_tokens_total")
    computed = total(metrics, "sglang:realtime_tokens_total") or 0.0
    return EngineLoad(
        running=int(sum(over("num_running_reqs", "num_reqs"))),
        waiting=int(sum(over("num_waiting_reqs"))),
        token_usage=max(over("token_usage")),
        generated_tokens=int(decoded if counted is None else counted),
        retractions=int(total(metrics, "sglang:num_retracted_requests_total") or 0),
        work=int(decoded + prefilled + computed),
        state_usage=next((value for _, value in samples(metrics, "sglang:mamba_usage")), None),
        accept_length=_accepted(ranks),
    )


def _accepted(ranks: list[Any]) -> float | None:
    found = [(rank.get("speculative") or {}).get("accept_length") for rank in ranks]
    lengths = [float(length) for length in found if length]
    return sum(lengths) / len(lengths) if lengths else None


def model_config(*models: str) -> Mapping[str, Any]:
    """Return the text part of the first config.json found in ``models`` (blocks on the disk).

    Raises:
        ValueError: there is none with a vocabulary size.
    """
    for model in models:
        path = (locate_model(model) or Path(model)) / "config.json"
        if path.is_file():
            config = orjson.loads(path.read_bytes())
            text = config.get("text_config") or config
            if "vocab_size" in text:
                return dict(text)
    raise ValueError(
        f"no config.json with a vocab_size at {models[0]}: give the model's folder with --model"
    )


def token_ids(value: Any) -> list[int]:
    """Return ``value`` if it is a list of token ids.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
        raise TypeError("output_ids is not a list of token ids")
    return value


def count(value: Any) -> int:
    """Return ``value`` if it is a count.

    Raises:
        TypeError: it is not.
    """
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


def _detail(reason: Mapping[str, Any]) -> str:
    if reason["type"] == "stop":
        return str(reason.get("matched", ""))
    return str(reason.get("message") or "")


async def _first(http: Http, paths: tuple[str, ...]) -> Reply:
    reply = Reply(None, b"", "nothing was asked")
    for path in paths:
        reply = await http.get(path, _ASK_SECONDS)
        if reply.status != 404:
            break
    return reply


def _prefix_cache(info: Mapping[str, Any]) -> bool | None:
    off = info.get("disable_radix_cache")
    return None if off is None else not off


async def _context(http: Http, info: Mapping[str, Any]) -> int:
    """Return the context length, which /server_info holds only if it was a flag."""
    reply = await http.get("/v1/models", _ASK_SECONDS)
    if reply.ok:
        return int(orjson.loads(reply.body)["data"][0]["max_model_len"])
    return int(info["max_req_input_len"])
