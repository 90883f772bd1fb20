"""Answers that a real SGLang server gave, and new ones in their shape."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.fake_scheduler import Job

FIXTURES = Path(__file__).parents[1] / "fixtures" / "sglang"


def captured(name: str) -> Any:
    """The body of a captured answer."""
    return json.loads((FIXTURES / f"{name}.json").read_text())["answer"]["body"]


def answer_of(job: Job, *, rid: str = "") -> dict[str, Any]:
    assert job.finish is not None
    text = bytes(i for i in job.output_ids if i < 256).decode(errors="replace")
    meta = captured("generate_logprob")["meta_info"]
    meta |= {
        "id": rid or job.rid,
        "finish_reason": job.finish,
        "prompt_tokens": len(job.input_ids) - job.unseen,
        "completion_tokens": len(job.output_ids),
        "cached_tokens": job.cached,
        "cached_tokens_details": {"device": job.cached, "host": 0} if job.cached else None,
        "num_retractions": job.retractions,
        "output_token_logprobs": [
            [logprob, token, None]
            for logprob, token in zip(job.logprobs, job.output_ids, strict=True)
        ],
        "output_token_logprobs_length": len(job.output_ids),
        "request_finished_ts": time.time(),
    }
    if job.silent:
        del meta["cached_tokens"], meta["cached_tokens_details"]
    if job.few_logprobs:
        del meta["output_token_logprobs"][-1]
    return {"text": text, "output_ids": job.output_ids, "meta_info": meta}
