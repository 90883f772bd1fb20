"""Rendering with the model's own tokenizer and chat template, by the transformers package."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from common.tokens import Tokens, load_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class HfRenderer:
    """A tokenizer in one thread of its own: it is not made for several, and must not hold the loop.

    The tokenizer loads at the first use; see :func:`common.tokens.load_tokens` for what it raises.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._tokens: Tokens | None = None

    async def load(self) -> None:
        """Load the tokenizer now, if it is not yet."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._load)

    async def render(
        self, messages: Sequence[Mapping[str, Any]], *, thinking: bool | None
    ) -> list[int]:
        """Return the token ids of a conversation, with the answer's turn opened."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._render, messages, thinking)

    async def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids`` without special tokens."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._decode, ids)

    async def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without an opening token."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: self._load().encode(text))

    async def template(self) -> str:
        """Return the chat template's text."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: self._load().template)

    def _render(self, messages: Sequence[Mapping[str, Any]], thinking: bool | None) -> list[int]:  # noqa: FBT001 - called through an executor
        return self._load().render([dict(message) for message in messages], thinking=thinking)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._load().decode(ids)

    def _load(self) -> Tokens:
        if self._tokens is None:
            self._tokens = load_tokens(self._model, download=True)
        return self._tokens
