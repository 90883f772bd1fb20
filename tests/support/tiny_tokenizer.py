"""A model folder without weights: a byte-level tokenizer, a ChatML template, a config.

Token ``b`` is byte ``b`` for 0 to 255; the control tokens follow. So a test can read ids by eye,
and the stand-in server can answer in text without a tokenizer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_ID = 258  # <|im_end|>
VOCAB_SIZE = 320  # padded, as real ones are
CONTEXT = 4096

TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role not in ('system', 'user', 'assistant') -%}
{{ raise_exception('unknown role ' ~ message.role) }}
{%- endif -%}
{{ '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{ '<think>\n\n</think>\n\n' }}
{%- endif -%}
{%- endif -%}
"""


def byte_letters() -> list[str]:
    """The printable letter by which byte-level vocabularies write each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letters = {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(others)}
    return [letters[b] for b in range(256)]


def build_model_folder(folder: Path, *, context: int = CONTEXT) -> Path:
    """Write the folder and return it; transformers' AutoTokenizer loads it."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {letter: b for b, letter in enumerate(byte_letters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "eos_token_id": EOS_ID,
        "max_position_embeddings": context,
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
    }
    tokenizer_config = {
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return folder
