"""States of a run as the status command reads them: one that is well, and what may be wrong."""

from __future__ import annotations

from dataclasses import replace

from common.audit import Canary, RunCounts
from common.queue.server import ServerFacts
from common.queue.workers import WorkerInfo
from common.records import RunInfo
from producer.status.data import Rate, RunStatus
from producer.status.store import Child, Example

INFO = RunInfo(
    run="ultrachat-200k",
    epoch="e" * 16,
    state="open",
    priority=0,
    items=902_087,
    fingerprint="f" * 64,
    model="Qwen/Qwen3.6-27B",
    model_fingerprint="",
    created=1_000_000.0,
)
COUNTS = RunCounts(
    run="ultrachat-200k",
    epoch="e" * 16,
    state="open",
    total=902_087,
    loaded=902_087,
    queued=400_000,
    waiting=12,
    leased=336,
    generated=120,
    committed=501_616,
    dead=3,
    done=501_736,
    committed_counter=501_616,
    completion_tokens=501_736 * 1000,
    wasted_tokens=1_000_000,
    failures={"empty": 40, "timeout": 7, "aborted": 3, "busy": 1},
    verdicts={"ok": 500_000, "truncated": 1_736},
    kept={"ok": 500_000, "truncated": 1_736},
    at=1_086_400.0,
    since_lease=1.0,
    since_result=1.0,
    since_commit=42.0,
)


def worker(number, **gauges):
    shown = {
        "engine": "ready",
        "in_flight": "48",
        "max_running": "64",
        "window": "48",
        "tokens_per_second": "3500",
        "completed": "71000",
        "failed": "0",
        "engine_starts": "1",
    }
    return WorkerInfo(
        name=f"gpu{number}-node1",
        state="busy",
        queues=(INFO.run,),
        hostname="node1",
        pid=number,
        finished=1,
        failed=0,
        birth="",
        last_heartbeat="",
        gauges=shown | gauges,
    )


PLACE = {"host": "n1.cluster"}
STATUS = RunStatus(
    info=INFO,
    counts=COUNTS,
    workers=[worker(0), worker(1), worker(2, tokens_per_second="1800", engine_starts="3")],
    dead_by_class={"too_long": 3},
    stream_limit=20_000,
    recent=Rate(8.8, 8_800.0),
    average=Rate(5.8, 5_800.0),
)


def with_(status=STATUS, *, info=None, **counts):
    info = replace(status.info, **(info or {}))
    return replace(status, info=info, counts=replace(status.counts, state=info.state, **counts))


FULL_ROWS = [
    worker(10, **PLACE, gpu="10", token_usage="0.871", gpu_temperature_celsius="64"),
    worker(2, **PLACE, gpu="2", tokens_per_second="1800", engine_starts="3"),
    worker(
        3, **PLACE, gpu="3", engine="starting", in_flight="0", window="0", tokens_per_second="0"
    ),
]
FINE = replace(
    STATUS,
    counts=replace(COUNTS, gpu_seconds=493.8 * 3600),
    recent=Rate(8.8, 8_800.0, 8.4, 9.1),
    workers=FULL_ROWS,
    last_part=1003,
    price=2.5,
)
NO_ROOM = replace(STATUS, server=ServerFacts(3_990_000_000, 4_000_000_000, 9, append_only_ok=True))
HELD = replace(
    with_(
        info={"state": "held"},
        hold_reason="174 of the first 200 rows went wrong (87 %): 174 empty",
        canary=Canary("held", 200, 200, 174, {"empty": 174, "ok": 26}, "faults"),
    ),
    examples=[
        Example(3, 4, "id-3", "empty", "Who wrote Faust?", "no text in 1 tokens"),
        Example(5, 6, None, "empty", "What is 2 + 2?", "no text in 1 tokens"),
    ],
    children=[Child("ultrachat-200k-truncated", "truncated", 1_736, "open", 12)],
)
