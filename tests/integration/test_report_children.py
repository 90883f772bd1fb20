"""What a report says of a run's children, and that it says so on the page, too."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout

from pydantic import SecretStr

from common.records import Usage
from producer.console import Console
from producer.report.command import run_report
from tests.support.committed import store_child, store_committed
from tests.support.completions import completion

NOWHERE = SecretStr("redis://127.0.0.1:9/0")


def test_children_are_told_with_what_they_redid_and_what_counts(settings, store, tmp_path):
    cut = {"verdict": "truncated", "finish_reason": "length", "usage": Usage(3, 16)}
    parts = [[completion(0), completion(1, **cut)], [completion(2, **cut), completion(3, **cut)]]
    parent = store_committed(store, "parent", parts)
    redone = [completion(0), completion(1, **cut), completion(2)]
    child = store_child(store, parent, "parent-again", [1, 2, 3], [redone])
    store_child(store, child, "parent-anew", [1], [[completion(0)]])
    alone = settings.model_copy(update={"redis_url": NOWHERE})
    with redirect_stdout(io.StringIO()) as said:
        out = str(tmp_path / "page.html")
        run_report("parent", alone, Console(json=True), out=out, price=None, examples=False)
    found = json.loads(said.getvalue())
    assert found["children"] == [
        {"run": "parent-again", "parent": "parent", "redone": "truncated", "items": 3,
         "committed": 3, "ok": 2, "taken": 2, "lost": 0},
        {"run": "parent-anew", "parent": "parent-again", "redone": "truncated", "items": 1,
         "committed": 1, "ok": 1, "taken": 1, "lost": 0},
    ]  # fmt: skip
    assert found["limit"]["cut"] == 3
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "truncated of parent-again" in page
    assert "Of these, 3 were done again in child runs" in page
