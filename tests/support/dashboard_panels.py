"""What is on the Grafana dashboards: one table a role."""

from __future__ import annotations

from dataclasses import dataclass

HALF, THIRD = 12, 8


@dataclass(frozen=True)
class Panel:
    """One panel. ``queries``: PromQL and what a line of it is called."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = HALF
    about: str = ""
    stacked: bool = False
    red_above: float | None = None


@dataclass(frozen=True)
class Dashboard:
    """One page, for one role. ``variables``: name -> the query that its values come from."""

    uid: str
    title: str
    about: str
    variables: dict[str, str]
    panels: tuple[Panel, ...]


RUN = {"run": "label_values(genq_run_size_items, run)"}
OVERVIEW = Dashboard(
    "genq-overview",
    "genq: overview",
    "How the runs stand, at a glance.",
    RUN,
    (
        Panel(
            "State",
            {'genq_run_status{run=~"$run"} == 1': "{{run}}: {{status}}"},
            kind="stat",
            width=THIRD,
            about="The word that `gen-producer status` uses; it also names the cause.",
        ),
        Panel(
            "Answered",
            {
                'sum(genq_run_items{run=~"$run",place=~"generated|committed|dead"})'
                ' / sum(genq_run_size_items{run=~"$run"})': "answered"
            },
            "percentunit",
            kind="stat",
            width=4,
        ),
        Panel(
            "Left, at best and at worst",
            {'max by (bound) (genq_run_remaining_seconds{run=~"$run"})': "{{bound}}"},
            "s",
            kind="stat",
            width=4,
            about="As `gen-producer status` says; nothing while no run generates.",
        ),
        Panel(
            "Dead letters",
            {'sum(genq_run_items{run=~"$run",place="dead"})': "dead"},
            kind="stat",
            width=4,
            red_above=1,
        ),
        Panel(
            "Does not add up",
            {'sum(genq_run_problems{run=~"$run"})': "problems"},
            kind="stat",
            width=4,
            red_above=1,
        ),
        Panel(
            "Where the items are",
            {'sum by (place) (genq_run_items{run=~"$run"})': "{{place}}"},
            stacked=True,
        ),
        Panel("Results a second", {'run:genq_results:rate5m{run=~"$run"}': "{{run}}"}, "cps"),
        Panel(
            "Tokens a second",
            {'run:genq_completion_tokens:rate5m{run=~"$run"}': "{{run}}"},
            about="Of results that were taken; what was thrown away is in the panel of waste.",
        ),
        Panel(
            "Tokens a second by card",
            {"genq_worker_tokens_per_second": "{{worker}}"},
            about="As the consumers show it in Redis; also where Prometheus cannot reach them.",
        ),
        Panel(
            "Verdicts",
            {
                'sum by (verdict) (rate(genq_run_results_total{run=~"$run"}[5m]))': "{{verdict}}",
                'sum by (class) (rate(genq_run_failed_tries_total{run=~"$run"}[5m]))': (
                    "failed: {{class}}"
                ),
            },
            "cps",
            stacked=True,
        ),
        Panel(
            "Waste",
            {'run:genq_wasted_tokens:ratio1h{run=~"$run"}': "{{run}}"},
            "percentunit",
            about="Tokens that were generated and thrown away, of all of the last hour.",
        ),
        Panel(
            "Cards beside their peers",
            {"worker:genq_tokens_per_second:of_peers": "{{worker}} ({{model}})"},
            "percentunit",
            about="1 is the median of the cards with the same model. An alert looks below 0.6.",
        ),
        Panel(
            "Consumers",
            {
                'genq_run_workers{run=~"$run"}': "serving {{run}}",
                "sum by (state) (genq_worker_engine_state)": "engine {{state}}",
            },
        ),
    ),
)

GPU = {
    "instance": "label_values(genq_consumer_info, instance)",
    "gpu": 'label_values(genq_consumer_info{instance=~"$instance"}, gpu)',
}
AT = 'instance=~"$instance",gpu=~"$gpu"'
CARD = "{{instance}} gpu {{gpu}}"
CONSUMER = Dashboard(
    "genq-consumer",
    "genq: consumers",
    "Engines, windows and cards.",
    GPU,
    (
        Panel(
            "Engine",
            {f"genq_consumer_engine_state{{{AT}}} == 1": f"{CARD}: {{{{state}}}}"},
            kind="stat",
            width=HALF,
        ),
        Panel(
            "Starts of the engine, last day",
            {f"increase(genq_consumer_engine_starts_total{{{AT}}}[1d])": CARD},
            kind="stat",
            width=HALF,
            red_above=3,
        ),
        Panel(
            "In flight, and the window",
            {
                f"genq_consumer_in_flight_items{{{AT}}}": f"{CARD} in flight",
                f"genq_consumer_window_items{{{AT}}}": f"{CARD} window",
            },
            about="In flight below the window: there is nothing to lease, or Redis is slow.",
        ),
        Panel(
            "Requests in the engine",
            {
                f"genq_engine_running_requests{{{AT}}}": f"{CARD} running",
                f"genq_engine_waiting_requests{{{AT}}}": f"{CARD} waiting",
                f"genq_engine_max_running_requests{{{AT}}}": f"{CARD} at most",
                f"genq_engine_asked_running_requests{{{AT}}}": f"{CARD} asked for",
            },
        ),
        Panel(
            "Tokens a second",
            {f"rate(genq_engine_generated_tokens_total{{{AT}}}[2m])": CARD},
            about="By the engine's own counter, waste included.",
        ),
        Panel(
            "Token memory and state pool in use",
            {
                f"genq_engine_token_usage_ratio{{{AT}}}": f"{CARD} tokens",
                f"genq_engine_state_usage_ratio{{{AT}}}": f"{CARD} state",
            },
            "percentunit",
        ),
        Panel(
            "Room for tokens, slots of the state pool",
            {
                f"genq_engine_kv_tokens{{{AT}}}": f"{CARD} tokens",
                f"genq_engine_state_slots{{{AT}}}": f"{CARD} slots",
            },
        ),
        Panel(
            "Tokens that a check of drafts yields",
            {f"genq_engine_accepted_tokens{{{AT}}}": CARD},
            about="Of speculative decoding: the mean number of tokens for each step.",
        ),
        Panel(
            "Tries by verdict",
            {f"sum by (verdict) (rate(genq_consumer_tries_total{{{AT}}}[5m]))": "{{verdict}}"},
            "cps",
            stacked=True,
        ),
        Panel(
            "Set back by the engine for want of memory",
            {f"rate(genq_engine_retractions_total{{{AT}}}[5m])": CARD},
            "cps",
        ),
        Panel(
            "Completion tokens taken, and prompts",
            {
                f"rate(genq_consumer_completion_tokens_total{{{AT}}}[5m])": f"{CARD} completion",
                f"rate(genq_consumer_prompt_tokens_total{{{AT}}}[5m])": f"{CARD} prompt",
            },
        ),
        Panel(
            "Work that came to nothing",
            {
                f"rate(genq_consumer_duplicate_items_total{{{AT}}}[5m])": f"{CARD} came second",
                f"rate(genq_consumer_lost_leases_total{{{AT}}}[5m])": f"{CARD} lease lost",
                f"rate(genq_consumer_released_items_total{{{AT}}}[5m])": f"{CARD} given back",
                f"rate(genq_consumer_dropped_items_total{{{AT}}}[5m])": f"{CARD} run gone",
                f"rate(genq_consumer_failed_tries_total{{{AT}}}[5m])": f"{CARD} charged",
            },
            "cps",
        ),
        Panel(
            "Outcomes not taken yet, leases held",
            {
                f"genq_consumer_undelivered_items{{{AT}}}": f"{CARD} undelivered",
                f"genq_consumer_leased_items{{{AT}}}": f"{CARD} leased",
            },
        ),
        Panel(
            "Longest delay of the event loop",
            {f"genq_consumer_longest_lag_seconds{{{AT}}}": CARD},
            "s",
        ),
        Panel(
            "Card: busy",
            {f"genq_gpu_utilization_ratio{{{AT}}}": CARD},
            "percentunit",
            width=THIRD,
        ),
        Panel(
            "Card: memory",
            {
                f"genq_gpu_memory_used_bytes{{{AT}}}": f"{CARD} used",
                f"genq_gpu_memory_size_bytes{{{AT}}}": f"{CARD} size",
            },
            "bytes",
            width=THIRD,
        ),
        Panel(
            "Card: heat", {f"genq_gpu_temperature_celsius{{{AT}}}": CARD}, "celsius", width=THIRD
        ),
        Panel("Card: power", {f"genq_gpu_power_watts{{{AT}}}": CARD}, "watt", width=THIRD),
        Panel(
            "Card: slowed down by",
            {f"genq_gpu_throttled{{{AT}}} == 1": f"{CARD}: {{{{reason}}}}"},
            width=THIRD,
            about="power_cap is usual under full load; the others are worth a look.",
        ),
        Panel(
            "Card: readable, failing memory",
            {
                f"genq_gpu_up{{{AT}}}": CARD,
                f"genq_gpu_failing{{{AT}}} > 0": f"{CARD}: {{{{reason}}}}",
            },
            kind="stat",
            width=THIRD,
        ),
    ),
)

ON = 'run=~"$run"'
SINK = Dashboard(
    "genq-sink",
    "genq: sink and queue",
    "Results on their way to storage, and Redis.",
    RUN,
    (
        Panel(
            "Since the last commit",
            {f"genq_run_since_commit_seconds{{{ON}}}": "{{run}}"},
            "s",
            kind="stat",
            width=HALF,
        ),
        Panel(
            "Does not answer",
            {"genq_sink_away": "{{instance}}: {{service}}"},
            kind="stat",
            width=HALF,
            red_above=1,
        ),
        Panel(
            "Results that wait for the sink",
            {
                f'genq_run_items{{{ON},place="generated"}}': "{{run}}",
                f"max(genq_run_stream_limit_items{{{ON}}})": "at most",
            },
            about="At the limit consumers lease nothing more.",
        ),
        Panel(
            "The same in bytes",
            {
                f"genq_run_stream_bytes{{{ON}}}": "{{run}}",
                f"max(genq_run_stream_limit_bytes{{{ON}}})": "at most",
            },
            "bytes",
        ),
        Panel(
            "Completions committed a second",
            {f"sum by (run) (rate(genq_sink_committed_items_total{{{ON}}}[5m]))": "{{run}}"},
            "cps",
        ),
        Panel(
            "Bytes written a second",
            {f"sum by (run) (rate(genq_sink_written_bytes_total{{{ON}}}[5m]))": "{{run}}"},
            "Bps",
        ),
        Panel(
            "Time of a commit",
            {
                f"histogram_quantile({share}, sum by (le)"
                f" (rate(genq_sink_commit_seconds_bucket{{{ON}}}[15m])))": name
                for share, name in (("0.5", "median"), ("0.99", "99 of 100"))
            },
            "s",
        ),
        Panel(
            "Parts a minute",
            {f"sum by (run) (rate(genq_sink_parts_total{{{ON}}}[15m])) * 60": "{{run}}"},
            width=THIRD,
        ),
        Panel(
            "Results in hand",
            {f"sum by (run) (genq_sink_batch_items{{{ON}}})": "{{run}}"},
            width=THIRD,
        ),
        Panel(
            "Age of the oldest in hand",
            {f"max by (run) (genq_sink_batch_age_seconds{{{ON}}})": "{{run}}"},
            "s",
            width=THIRD,
        ),
        Panel(
            "Rejected, repeated, broken",
            {
                f"sum by (run) (genq_sink_rejected_results_total{{{ON}}})": "{{run}} rejected",
                f"sum by (run) (genq_sink_repeated_results_total{{{ON}}})": "{{run}} repeated",
                f"max by (run) (genq_sink_run_broken{{{ON}}})": "{{run}} broken",
            },
        ),
        Panel(
            "Calls without an answer",
            {"rate(genq_sink_failed_calls_total[5m])": "{{instance}}: {{service}}"},
            "cps",
        ),
        Panel(
            "Last commit of each sink, ago",
            {f"time() - genq_sink_last_commit_timestamp_seconds{{{ON}}}": "{{instance}} {{run}}"},
            "s",
        ),
        Panel(
            "Queue",
            {f'genq_run_items{{{ON},place=~"queued|waiting|leased"}}': "{{run}} {{place}}"},
        ),
        Panel(
            "Overdue retry, since a lease, since a result",
            {
                f"genq_run_overdue_retry_seconds{{{ON}}}": "{{run}} retry overdue",
                f"genq_run_since_lease_seconds{{{ON}}}": "{{run}} since a lease",
                f"genq_run_since_result_seconds{{{ON}}}": "{{run}} since a result",
            },
            "s",
        ),
        Panel(
            "Redis: memory",
            {
                "genq_redis_memory_used_bytes": "used",
                "genq_redis_memory_limit_bytes > 0": "maxmemory",
            },
            "bytes",
            width=THIRD,
        ),
        Panel("Redis: connections", {"genq_redis_clients": "clients"}, width=THIRD),
        Panel(
            "Exporter: time of a look",
            {"genq_exporter_look_seconds": "look"},
            "s",
            width=4,
        ),
        Panel("Exporter sees Redis (1)", {"genq_exporter_up": "up"}, kind="stat", width=4),
    ),
)
DASHBOARDS = {"overview": OVERVIEW, "consumer": CONSUMER, "sink": SINK}
