"""Rendering with the model's own tokenizer and chat template, by the transformers package."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from common.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class HfRenderer:
    """A tokenizer in one thread of its own: it is not made for several, and must not hold the loop.

    The tokenizer loads at the first use. Templates are foreign code in a sandbox; whatever one
    raises is a ``ValueError`` here, a fault of the row.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._tokenizer: Any = None

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

    def _render(self, messages: Sequence[Mapping[str, Any]], thinking: bool | None) -> list[int]:  # noqa: FBT001 - called through an executor
        tokenizer = self._load()
        options = {} if thinking is None else {"enable_thinking": thinking}
        try:
            ids = tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=True,
                add_generation_prompt=True,
                return_dict=False,
                **options,
            )
        except Exception as error:
            raise ValueError(f"the chat template refuses: {error}") from error
        return [int(i) for i in ids]

    def _decode(self, ids: Sequence[int]) -> str:
        # As the tokens say it: a "clean-up" of blanks would change what the model wrote.
        return str(
            self._load().decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def _load(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = _tokenizer(self._model)
        return self._tokenizer


def _tokenizer(model: str) -> Any:
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # of models: none is loaded
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415 - takes seconds to import
        from transformers.utils import logging  # noqa: PLC0415 - see above

        # Its own handler writes bare lines to stderr; ours gives them the form of all others.
        logging.disable_default_handler()
        logging.enable_propagation()
        tokenizer = AutoTokenizer.from_pretrained(model)
    except Exception as error:
        raise EngineError(
            f"The tokenizer of {model} cannot be loaded.",
            why=str(error).partition("\n")[0],
            fix="Give the model's folder with --model; transformers comes with 'genq[sglang]'.",
        ) from error
    if not tokenizer.chat_template:
        raise EngineError(
            f"{model} has no chat template, so messages cannot be rendered.",
            fix="Use an instruction-tuned model, or put a chat_template.jinja into its folder.",
        )
    return tokenizer
