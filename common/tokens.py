"""Prompts as token ids, by the model's own tokenizer and chat template, without an engine.

Both come from a model folder in Hugging Face's layout, or from the metadata of a GGUF file. What
is counted here is what a consumer sends: it renders with the same code, or (llama.cpp) with a
server whose tokenizer is built from the same metadata.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import EngineError
from common.gguf import gguf_context, read_metadata
from common.installing import install

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Message = Mapping[str, Any]

# How a GGUF file's tokenizer.ggml.pre splits text before byte pairs are merged, one pattern after
# another. Only what was compared with llama.cpp itself is in it (tests/integration/
# test_gguf_kinds.py): a near miss would give wrong counts without a word.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GGUF_SPLITS = {
    "gpt-2": (_WORDS,),
    "qwen2": (_QWEN2,),
    "qwen35": (_QWEN35,),
    "smollm": (r"\p{N}", _WORDS),
}
# What templates call the switch: Qwen, GLM, SmolLM3, Hunyuan, ...; DeepSeek, Kimi, Granite.
THINKING_SWITCHES = ("enable_thinking", "thinking")
_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_HUB_SECONDS = 10.0
_ENDLESS_TOKENS = 10**9  # what tokenizers call their limit where they know none


class Tokens:
    """A tokenizer with a chat template. It blocks, and is not made for several threads.

    Templates are foreign code in a sandbox; whatever one raises is a ``ValueError`` here, a fault
    of the row. ``context_tokens`` is the most that the model takes by its own word, prompt and
    answer together; None where it says nothing.
    """

    def __init__(self, tokenizer: Any, *, context_tokens: int | None = None) -> None:
        self._tokenizer = tokenizer
        self.context_tokens = context_tokens

    def render(self, messages: Sequence[Message], *, thinking: bool | None) -> list[int]:
        """Return the token ids of a conversation, with the answer's turn opened.

        Raises:
            ValueError: the template refuses these messages.
        """
        return [int(i) for i in self._apply(list(messages), thinking=thinking, tokenize=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids`` without special tokens."""
        # As the tokens say it: a "clean-up" of blanks would change what the model wrote.
        return str(
            self._tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text by itself, without an opening token."""
        return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=False)]

    @property
    def template(self) -> str:
        """The chat template's text; where there are several, all of them."""
        found = self._tokenizer.chat_template
        return found if isinstance(found, str) else "\n".join(map(str, dict(found).values()))

    def counts(
        self, conversations: Sequence[Sequence[Message]], *, thinking: bool | None
    ) -> list[int | ValueError]:
        """Return how many tokens each conversation has, or why the template refuses it.

        Tokenizers written in Rust work on a batch on all cores, and let go of the interpreter.
        """
        texts = self._texts(conversations, thinking)
        good = [text for text in texts if isinstance(text, str)]
        sizes = iter(self._sizes(good))
        return [next(sizes) if isinstance(text, str) else text for text in texts]

    def _texts(
        self,
        conversations: Sequence[Sequence[Message]],
        thinking: bool | None,  # noqa: FBT001
    ) -> list[str | ValueError]:
        with suppress(ValueError):
            return list(self._apply([list(one) for one in conversations], thinking=thinking))
        texts: list[str | ValueError] = []
        for one in conversations:
            try:
                texts.append(self._apply(list(one), thinking=thinking))
            except ValueError as error:
                texts.append(error)
        return texts

    def _sizes(self, texts: list[str]) -> list[int]:
        fast = getattr(self._tokenizer, "backend_tokenizer", None)
        if fast is not None:
            return [len(one) for one in fast.encode_batch_fast(texts, add_special_tokens=False)]
        found = self._tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        return [len(ids) for ids in found]

    def _apply(
        self, conversation: list[Any], *, thinking: bool | None, tokenize: bool = False
    ) -> Any:
        options = {} if thinking is None else dict.fromkeys(THINKING_SWITCHES, thinking)
        try:
            return self._tokenizer.apply_chat_template(
                conversation,
                tokenize=tokenize,
                add_generation_prompt=True,
                return_dict=False,
                **options,
            )
        except Exception as error:
            raise ValueError(f"the chat template refuses: {error}") from error


def own_context(path: Path) -> int | None:
    """Return the most tokens that a model takes by its own word: of its folder, or GGUF file.

    None where it cannot be told. Needs no package.
    """
    try:
        if path.is_file():
            return gguf_context(path)
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict):
        return None
    # Models that also see keep the text's part inside.
    for part in (config, config.get("text_config"), config.get("llm_config")):
        if isinstance(part, dict) and isinstance(size := part.get("max_position_embeddings"), int):
            return size
    return None


def load_tokens(model: str, *, download: bool = False) -> Tokens:
    """Load the tokenizer of a model folder, a ``.gguf`` file, or a model of the hub.

    A name of the hub is looked up in this machine's cache, and only with ``download`` out there.
    Takes seconds: the transformers package is imported.

    Raises:
        EngineError: it is not there, not of a known kind, or has no chat template; or
            transformers is not installed.
    """
    path = Path(model).expanduser()
    if "/" not in model and not path.exists():  # no name of the hub: nothing need be imported
        raise EngineError(
            f"The tokenizer of {model} cannot be loaded.",
            why=f"There is no file or folder {model} here.",
            fix="Give the model's folder, or its .gguf file, with --model.",
        )
    try:
        with _torch_hidden():
            _quieten()
            if path.is_file():
                tokens = _from_gguf(path)
            else:
                tokens = _from_folder(str(path) if path.is_dir() else model, download=download)
    except ImportError as error:
        raise EngineError(
            f"The tokenizer of {model} cannot be loaded.",
            why=f"{error}".partition("\n")[0],
            fix=install("tokens"),
        ) from error
    except Exception as error:
        raise EngineError(
            f"The tokenizer of {model} cannot be loaded.",
            why=str(error).partition("\n")[0],
            fix="Give the model's folder, or its .gguf file, with --model.",
        ) from error
    if not tokens._tokenizer.chat_template:  # noqa: SLF001 - this module's own
        raise EngineError(
            f"{model} has no chat template, so messages cannot be rendered.",
            fix="Use an instruction-tuned model, or put a chat_template.jinja into its folder.",
        )
    return tokens


@contextmanager
def _torch_hidden() -> Iterator[None]:
    """Let transformers find no torch: tokenizers do without, and it costs seconds and 180 MB."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # the documented way to bar an import
    try:
        yield
    finally:
        sys.modules.pop("torch", None)


def _quieten() -> None:
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # of models: none is loaded
    from transformers.utils import logging  # noqa: PLC0415 - takes seconds to import

    # Its own handler writes bare lines to stderr; ours gives them the form of all others.
    logging.disable_default_handler()
    logging.enable_propagation()


def _from_folder(model: str, *, download: bool) -> Tokens:
    from transformers import AutoTokenizer  # noqa: PLC0415 - takes seconds to import
    from transformers.utils.hub import cached_file  # noqa: PLC0415 - the same

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError):
        if not download:
            raise
        from huggingface_hub import HfApi  # noqa: PLC0415 - the same

        # One question that fails at once: a download that cannot be had is tried for a minute.
        HfApi().model_info(model, timeout=_HUB_SECONDS)
        tokenizer = AutoTokenizer.from_pretrained(model)
    context = None
    with suppress(OSError, ValueError):
        config = cached_file(model, "config.json", local_files_only=not download)
        context = own_context(Path(config or "").parent)
    if context is None and tokenizer.model_max_length < _ENDLESS_TOKENS:
        context = int(tokenizer.model_max_length)
    return Tokens(tokenizer, context_tokens=context)


def _from_gguf(path: Path) -> Tokens:
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - slow

    data = read_metadata(path)
    kind, split = data.get("tokenizer.ggml.model"), data.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in GGUF_SPLITS or data.get("tokenizer.ggml.add_bos_token"):
        raise ValueError(f"its tokenizer ({kind}, {split}) is one that only llama.cpp can run")
    names = data["tokenizer.ggml.tokens"]
    marks = {
        f"{role}_token": names[data[f"tokenizer.ggml.{role}_token_id"]]
        for role in ("bos", "eos")
        if f"tokenizer.ggml.{role}_token_id" in data
    }
    new: Any = PreTrainedTokenizerFast
    tokenizer = new(
        tokenizer_object=_byte_pairs(data),
        chat_template=data.get("tokenizer.chat_template"),
        **marks,
    )
    return Tokens(tokenizer, context_tokens=gguf_context(path))


def _byte_pairs(data: Mapping[str, Any]) -> Any:
    """Return the tokenizer that a GGUF file's vocabulary, merges and marks make."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models  # noqa: PLC0415 - slow
    from tokenizers import pre_tokenizers as pre  # noqa: PLC0415 - the same

    names = data["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in data["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges))
    splits = GGUF_SPLITS[data["tokenizer.ggml.pre"]]
    made.pre_tokenizer = pre.Sequence(
        [
            *(pre.Split(Regex(pattern), "isolated") for pattern in splits),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_tokens(
        [
            AddedToken(name, normalized=False, special=kind == _CONTROL)
            for name, kind in zip(names, data["tokenizer.ggml.token_type"], strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return made
