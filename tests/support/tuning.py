"""``gen-consumer tune`` over the stand-in, at a pace for tests; also as a program to be killed.

``python -m tests.support.tuning STATE_DIR MODEL MOST_TRIALS`` runs a round as the command would.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from common.settings import load_settings
from consumer.tuning import tune
from consumer.tuning.opening import TuneOptions
from consumer.tuning.steady import Pace
from tests.support.fake_engine import FakeSglang

if TYPE_CHECKING:
    from common.settings import Settings

PACE = Pace(
    sample_seconds=0.02,
    settle_seconds=0.1,
    rise_seconds=0.1,
    warm_seconds=0.5,
    ramp_seconds=60.0,
    measure_seconds=0.5,
    least_seconds=0.3,
    stall_seconds=30.0,  # a busy machine is slow, and not stuck
    stop_seconds=1.0,
    start_least_seconds=60.0,
    rungs=((0.3, 0.3),),
)
# Eight requests run with the radix cache, forty without; a step costs the same for all of them.
BASE = (
    *("--state-pool", "40", "--token-seconds", "0.01", "--request-seconds", "0.0001"),
    *("--load-format", "dummy"),  # so that the honesty check needs no tokenizer: half a second less
    *("--crash-with=16384", "--hang-with=lpm", "--lie-with=--disable-prefill-cuda-graph"),
)
MINUTES = 30.0  # never reached: a test says how many trials are enough


def options(**changes: Any) -> TuneOptions:
    fields: dict[str, Any] = {
        "gpu": None,
        "minutes": MINUTES,
        "prompts": "random:16:24",
        "flags": BASE,
        "pace": PACE,
    }
    return TuneOptions(**(fields | changes))


async def run(settings: Settings, model: str, **changes: Any) -> int:
    settings = settings.model_copy(update={"model": model})
    with mock.patch.object(tune, "engine_named", return_value=FakeSglang()):
        return int(await tune.tune(settings, options(**changes)))


def main() -> int:
    state_dir, model, most = sys.argv[1:]
    settings = load_settings(state_dir=Path(state_dir))
    return asyncio.run(run(settings, model, most_trials=int(most)))


if __name__ == "__main__":
    sys.exit(main())
