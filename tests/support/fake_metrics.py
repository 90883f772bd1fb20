"""What the stand-in shows at /metrics: the names of the captured page that steering reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.fake_scheduler import Scheduler


def metrics_page(scheduler: Scheduler, model: str) -> str:
    label = f'engine_type="unified",model_name="{model}"'
    figures = {
        f'generation_tokens_total{{{label},is_streaming="false"}}': scheduler.finished_tokens,
        f'realtime_tokens_total{{{label},mode="decode",tp_rank="0"}}': scheduler.decoded,
        f'realtime_tokens_total{{{label},mode="prefill_compute",tp_rank="0"}}': scheduler.prefilled,
        f"num_running_reqs{{{label}}}": len(scheduler.running),
    }
    pool = scheduler.pool
    if pool.retracted:  # these appear with the first retraction
        figures |= {
            f"num_retracted_requests_total{{{label}}}": pool.retracted,
            f"num_retracted_input_tokens_total{{{label}}}": pool.retracted_input_tokens,
            f"num_retracted_output_tokens_total{{{label}}}": pool.retracted_output_tokens,
        }
    return "".join(f"sglang:{name} {float(value)}\n" for name, value in figures.items())
