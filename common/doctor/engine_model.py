"""The doctor's look at a model: is it on this machine, and does its chat template render."""

from __future__ import annotations

from common.doctor.findings import Finding, Level, Part, failed
from common.errors import EngineError
from common.model import locate_model
from common.settings import origin_text

GREETING = ({"role": "user", "content": "Hello!"},)
_ENGINE_ONLY = "only llama.cpp can run"  # of common.tokens: a kind of GGUF tokenizer


def look_at_model(model: str, *, needed: bool) -> list[Finding]:
    """Return what is to be said of a model and its template; nothing is downloaded.

    ``needed``: the service cannot work without it, as a consumer.
    """
    bad = Level.FAIL if needed else Level.WARN
    if not model:
        what = f"none is named: {origin_text('model')}"
        fix = "export GENQ_MODEL=/models/...    (or --model)"
        level = bad if needed else Level.SKIP
        return [Finding(Part.MODEL, "model", level, what, fix)]
    try:
        path = locate_model(model)
    except EngineError as error:
        return [failed(Part.MODEL, "model", error, level=bad)]
    if path is not None:
        return [
            Finding(Part.MODEL, "model", Level.OK, str(path)),
            _template(str(path), bad),
        ]
    template = _template(model, bad)  # of the hub's cache, if it is there
    if template.level is Level.OK:
        return [Finding(Part.MODEL, "model", Level.OK, f"{model}, in the hub's cache"), template]
    if "/" in model and not model.startswith(("/", ".", "~")):
        what = f"{model} is not on this machine: it will be downloaded, which may take long"
        found = Finding(Part.MODEL, "model", Level.WARN, what, f"hf download {model}")
        return [found]
    what = f"there is no file or folder {model} here"
    return [
        Finding(Part.MODEL, "model", bad, what, "ls -d /models/*    (then --model, GENQ_MODEL)")
    ]


def _template(model: str, bad: Level) -> Finding:
    from common.tokens import load_tokens  # noqa: PLC0415 - transformers takes seconds to import

    name = "chat template"
    try:
        tokens = load_tokens(model)
        ids = tokens.render([dict(message) for message in GREETING], thinking=None)
    except EngineError as error:
        if _ENGINE_ONLY in error.why:
            what = f"not tried: {error.why}"
            return Finding(Part.MODEL, name, Level.OK, what)
        missing = isinstance(error.__cause__, ImportError)
        return failed(Part.MODEL, name, error, level=Level.WARN if missing else bad)
    except ValueError as error:
        fix = "Put a working chat_template.jinja into the model's folder."
        return Finding(Part.MODEL, name, bad, " ".join(str(error).split()), fix)
    context = f", context {tokens.context_tokens:,} tokens" if tokens.context_tokens else ""
    return Finding(Part.MODEL, name, Level.OK, f"a greeting is {len(ids)} tokens{context}")
