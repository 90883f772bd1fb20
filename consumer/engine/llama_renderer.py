"""Rendering by the llama server itself: it holds the model's template and tokenizer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from common.errors import EngineError
from common.tokens import THINKING_SWITCHES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from consumer.engine.api import Http, Reply

_SECONDS = 120.0  # behind a full engine on a busy CPU
# How templates write control tokens: <|im_end|>, <s>, </s>, <end_of_turn>, [INST] are such;
# reasoning marks like <think> are text and stay.
_MARKS = re.compile(r"<\|[^<>|]+\|>|</?s>|<(?:start|end)_of_turn>|<[be]os>")


class LlamaRenderer:
    """Asks /apply-template, /tokenize and /detokenize; remembers only the control tokens."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._special: frozenset[int] | None = None

    async def load(self) -> None:
        """Do nothing: the server has it all."""

    async def render(
        self, messages: Sequence[Mapping[str, Any]], *, thinking: bool | None
    ) -> list[int]:
        """Return the token ids of a conversation, with the answer's turn opened."""
        body: dict[str, Any] = {"messages": [dict(message) for message in messages]}
        if thinking is not None:
            body["chat_template_kwargs"] = dict.fromkeys(THINKING_SWITCHES, thinking)
        answer = await self._ask("/apply-template", body)
        # The template's own opening token was taken off by the server if the tokenizer puts it
        # there, so exactly one stays.
        return await self._tokenize(str(answer["prompt"]), opening=True)

    async def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids`` without control tokens."""
        special = await self._specials()
        plain = [i for i in ids if i not in special]
        if not plain:
            return ""
        return str((await self._ask("/detokenize", {"tokens": plain}))["content"])

    async def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without an opening token."""
        return await self._tokenize(text, opening=False)

    async def template(self) -> str:
        """Return the chat template's text, as the model's file has it."""
        return str((await self._props()).get("chat_template") or "")

    async def _tokenize(self, text: str, *, opening: bool) -> list[int]:
        body = {"content": text, "add_special": opening, "parse_special": True}
        return [int(i) for i in (await self._ask("/tokenize", body))["tokens"]]

    async def _specials(self) -> frozenset[int]:
        if self._special is None:
            props = await self._props()
            marks = set(_MARKS.findall(props.get("chat_template") or ""))
            marks |= {props.get("bos_token"), props.get("eos_token")} - {None, ""}
            found = [await self._one_token(mark) for mark in sorted(marks)]
            self._special = frozenset(i for i in found if i is not None)
        return self._special

    async def _props(self) -> dict[str, Any]:
        reply = await self._http.get("/props", _SECONDS)
        if not reply.ok:
            raise _unreachable("/props", reply)
        return dict(orjson.loads(reply.body))

    async def _one_token(self, mark: str) -> int | None:
        tokens = await self.encode(mark)
        return tokens[0] if len(tokens) == 1 else None

    async def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            reply = await self._http.post(path, body, _SECONDS)
        except TypeError as error:  # what JSON cannot hold: lone surrogates
            raise ValueError(f"{path} cannot be asked: {error}") from error
        if reply.status in (400, 500):
            raise ValueError(f"{path} refuses: {reply.body[:500].decode(errors='replace')}")
        if not reply.ok:
            raise _unreachable(path, reply)
        try:
            return dict(orjson.loads(reply.body))
        except (TypeError, ValueError) as error:
            raise _unreachable(path, reply) from error


def _unreachable(path: str, reply: Reply) -> EngineError:
    return EngineError(
        "The engine that renders prompts does not answer.",
        why=f"{path}: {reply.error or f'status {reply.status}'}",
    )
