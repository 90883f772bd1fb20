"""Completions for tests: a plain one, and a strategy for any."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from common import codec
from common.ids import Item
from common.records import Completion, Sampling, Turn, Usage


def completion(
    k: int, *, content: str | None = None, verdict: str = "ok", **more: Any
) -> Completion:
    fields = {
        "k": Item(k),
        "row": k,
        "sample": 0,
        "row_id": f"row {k}",
        "messages": [{"role": "user", "content": f"Say {k}."}],
        "content": f"answer to {k}" if content is None else content,
        "reasoning_content": None,
        "input_ids": [1, 2, k],
        "output_ids": [3, k],
        "finish_reason": "stop",
        "verdict": verdict,
        "usage": Usage(3, 2),
        "seed": 7,
        "sampling": Sampling(max_tokens=16),
        "model": "tiny",
        "engine": "fake 1",
        "attempt": 1,
        "worker": "gpu0@host",
        "started": "2026-01-01T00:00:00Z",
        "seconds": 1.5,
        "metadata": {},
    }
    return Completion(**(fields | more))


def payload(one: Completion) -> bytes:
    return codec.compress(codec.dumps(one), level=codec.ZSTD_LEVEL_FAST)


def _text() -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


def _json() -> st.SearchStrategy[Any]:
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | _text()
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text(), inner),
        max_leaves=6,
    )


def _messages() -> st.SearchStrategy[Any]:
    plain = st.fixed_dictionaries({"role": _text(), "content": _text()})
    return st.lists(plain | st.dictionaries(_text(), _json(), max_size=4), max_size=3)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
    number = st.integers(0, 2**63 - 1)
    return completion(
        draw(number),
        row=draw(number),
        sample=draw(st.integers(0, 2**31 - 1)),
        row_id=draw(st.none() | _text()),
        messages=draw(_messages()),
        content=draw(_text()),
        reasoning_content=draw(st.none() | _text()),
        input_ids=draw(ids),
        output_ids=draw(ids),
        finish_reason=draw(_text()),
        verdict=draw(_text()),
        usage=Usage(draw(number), draw(number), draw(number), draw(number)),
        seed=draw(number),
        sampling=Sampling(
            temperature=draw(st.none() | st.floats(0, 2)),
            stop=draw(st.none() | st.lists(_text(), max_size=2).map(tuple)),
        ),
        seconds=draw(st.floats(0, 1e6)),
        metadata=draw(st.dictionaries(_text(), _json(), max_size=3)),
        turns=draw(st.lists(_turns(), max_size=2)),
    )


def _turns() -> st.SearchStrategy[Turn]:
    ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
    return st.builds(
        Turn,
        content=_text(),
        reasoning_content=st.none() | _text(),
        input_ids=ids,
        output_ids=ids,
        finish_reason=_text(),
        verdict=_text(),
        usage=st.just(Usage(3, 2, 1, 1)),
        seed=st.integers(0, 2**31 - 1),
    )
