"""Every metric of every service: its name, kind, help and labels, spelled once.

Names follow Prometheus' conventions: ``genq_`` first, the base unit last (seconds, bytes, tokens,
items), ``_total`` on what only grows. Labels have few values: a run, a place of a GPU, a verdict.
No prompt, no completion, no id of an item is ever in one.

``docs/metrics.md`` and ``gen-producer exporter --list`` are made from this module; rules and
dashboards are checked against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. A counter's name ends in ``_total``, its help says what one unit of it is."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(name, "counter", help_text, labels)


def _gauge(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(name, "gauge", help_text, labels)


COMMIT_BUCKETS_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

# gen-consumer --metrics-port: one engine each; ``gpu`` is its number, "" where it has none.
CONSUMER = (
    _gauge("genq_consumer_info", "1; what this consumer serves", "gpu", "model", "version"),
    _gauge("genq_consumer_engine_state", "1 for the state that the engine is in", "gpu", "state"),
    _counter("genq_consumer_engine_starts_total", "Starts of the engine", "gpu"),
    _gauge("genq_consumer_in_flight_items", "Items being generated", "gpu"),
    _gauge("genq_consumer_window_items", "Items that may be in flight", "gpu"),
    _gauge("genq_consumer_leased_items", "Leases that are held and renewed", "gpu"),
    _gauge("genq_consumer_undelivered_items", "Outcomes that the queue has not taken yet", "gpu"),
    _gauge("genq_consumer_starved", "1 if the queues had nothing at the last look", "gpu"),
    _counter("genq_consumer_tries_total", "Tries that ended, by verdict", "gpu", "verdict"),
    _counter("genq_consumer_completed_items_total", "Results that the queue took first", "gpu"),
    _counter("genq_consumer_failed_tries_total", "Tries that were charged to their item", "gpu"),
    _counter("genq_consumer_released_items_total", "Items given back uncharged", "gpu"),
    _counter("genq_consumer_duplicate_items_total", "Results that came second", "gpu"),
    _counter("genq_consumer_dropped_items_total", "Outcomes whose run was gone or over", "gpu"),
    _counter("genq_consumer_lost_leases_total", "Leases that Redis gave to another", "gpu"),
    _counter(
        "genq_consumer_prompt_tokens_total", "Prompt tokens of results that were taken", "gpu"
    ),
    _counter("genq_consumer_completion_tokens_total", "Tokens of results that were taken", "gpu"),
    _gauge("genq_consumer_longest_lag_seconds", "Longest delay of the event loop so far", "gpu"),
    _gauge("genq_engine_max_running_requests", "Requests that the engine runs at once", "gpu"),
    _gauge("genq_engine_asked_running_requests", "Requests at once that were asked for", "gpu"),
    _gauge("genq_engine_state_slots", "Slots of the state pool of a hybrid model", "gpu"),
    _gauge("genq_engine_kv_tokens", "Tokens that the engine's cache has room for", "gpu"),
    _gauge("genq_engine_running_requests", "Requests that the engine is running", "gpu"),
    _gauge("genq_engine_waiting_requests", "Requests that wait inside the engine", "gpu"),
    _gauge("genq_engine_token_usage_ratio", "Share of the engine's token memory in use", "gpu"),
    _gauge("genq_engine_state_usage_ratio", "Share of the state pool in use", "gpu"),
    _gauge("genq_engine_accepted_tokens", "Tokens that a check of drafts yields, mean", "gpu"),
    _counter("genq_engine_generated_tokens_total", "Tokens the engine generated, waste too", "gpu"),
    _counter("genq_engine_retractions_total", "Requests the engine set back for memory", "gpu"),
    _gauge("genq_gpu_up", "1 if the driver can read the card, 0 if it is lost", "gpu"),
    _gauge("genq_gpu_memory_used_bytes", "Memory of the card in use", "gpu"),
    _gauge("genq_gpu_memory_size_bytes", "Memory of the card", "gpu"),
    _gauge("genq_gpu_utilization_ratio", "Share of time in which the card computed", "gpu"),
    _gauge("genq_gpu_temperature_celsius", "Temperature of the card", "gpu"),
    _gauge("genq_gpu_power_watts", "Power that the card draws", "gpu"),
    _gauge("genq_gpu_failing", "1 for each sign that the card's memory fails", "gpu", "reason"),
    _gauge("genq_gpu_throttled", "1 for each reason that slows the card down", "gpu", "reason"),
)

# gen-sink --metrics-port; ``service`` is redis or storage.
SINK = (
    _gauge("genq_sink_info", "1; the format of new runs' parts", "format", "version"),
    _counter("genq_sink_parts_total", "Parts that this sink committed", "run"),
    _counter("genq_sink_committed_items_total", "Completions in those parts", "run"),
    _counter("genq_sink_written_bytes_total", "Bytes of those parts", "run"),
    _counter("genq_sink_repeated_results_total", "Results stored before, dropped again", "run"),
    _counter("genq_sink_rejected_results_total", "Results that cannot be stored", "run"),
    Metric("genq_sink_commit_seconds", "histogram", "Time of one commit, outages too", ("run",)),
    _gauge("genq_sink_last_commit_timestamp_seconds", "When this sink last committed", "run"),
    _gauge("genq_sink_batch_items", "Results in hand, not committed yet", "run"),
    _gauge("genq_sink_batch_age_seconds", "Age of the oldest result in hand", "run"),
    _gauge("genq_sink_run_broken", "1 if storage does not hold the run as it should", "run"),
    _counter("genq_sink_failed_calls_total", "Calls without an answer, retried", "service"),
    _gauge("genq_sink_away", "1 while calls are not answered", "service"),
)

# gen-producer exporter: runs, their queues, the fleet as Redis knows it, and Redis itself.
EXPORTER = (
    _gauge("genq_exporter_up", "1 if the last look at Redis succeeded"),
    _counter("genq_exporter_looks_total", "Looks at Redis"),
    _counter("genq_exporter_failed_looks_total", "Looks at Redis that failed"),
    _gauge("genq_exporter_look_seconds", "Time that the last look took"),
    _gauge("genq_exporter_last_look_timestamp_seconds", "When Redis was last read"),
    _gauge("genq_run_size_items", "Items that the run has", "run"),
    _gauge("genq_run_loaded_items", "Items of it that are loaded", "run"),
    _gauge("genq_run_items", "Items by where they are; adds up to the loaded", "run", "place"),
    _gauge("genq_run_status", "1 for the state of the run, as `status` words it", "run", "status"),
    _gauge("genq_run_priority", "Runs of a higher one are served first", "run"),
    _gauge("genq_run_workers", "Consumers that serve the run and are heard", "run"),
    _gauge("genq_run_problems", "What does not add up; 0 at every moment", "run"),
    _counter("genq_run_results_total", "Results that were taken, by verdict", "run", "verdict"),
    _counter("genq_run_failed_tries_total", "Tries that failed, by class", "run", "class"),
    _counter("genq_run_prompt_tokens_total", "Prompt tokens of results that were taken", "run"),
    _counter("genq_run_completion_tokens_total", "Tokens of results that were taken", "run"),
    _counter("genq_run_wasted_tokens_total", "Tokens generated and thrown away", "run"),
    _gauge("genq_run_stream_bytes", "Results on their way to the sink", "run"),
    _gauge("genq_run_stream_limit_items", "Results above which nothing is leased", "run"),
    _gauge("genq_run_stream_limit_bytes", "The same, in bytes", "run"),
    _gauge("genq_run_since_lease_seconds", "Since an item was last handed out", "run"),
    _gauge("genq_run_since_result_seconds", "Since a result was last taken", "run"),
    _gauge("genq_run_since_commit_seconds", "Since the sink last stored something", "run"),
    _gauge(
        "genq_run_remaining_seconds",
        "Until all is answered, `best` and `worst`, as `status` says; only while it generates",
        "run",
        "bound",
    ),
    _gauge("genq_run_overdue_retry_seconds", "How long the oldest due retry has waited", "run"),
    _gauge("genq_worker_info", "1; what the consumer serves", "worker", "model"),
    _gauge("genq_worker_engine_state", "1 for the state of its engine", "worker", "state"),
    _gauge("genq_worker_in_flight_items", "Items being generated", "worker"),
    _gauge("genq_worker_window_items", "Items that may be in flight", "worker"),
    _gauge("genq_worker_tokens_per_second", "Tokens generated a second, recent", "worker"),
    _gauge("genq_worker_engine_starts", "Starts of its engine since it began", "worker"),
    _gauge("genq_queue_suspended", "1 after `rq suspend`"),
    _gauge("genq_redis_memory_used_bytes", "Memory that Redis uses"),
    _gauge("genq_redis_memory_limit_bytes", "Its maxmemory; 0 if it has none"),
    _gauge("genq_redis_clients", "Connections to Redis"),
    _gauge("genq_redis_append_only_ok", "1 if the AOF is on and its last write went well"),
)

SERVICES = {"gen-consumer": CONSUMER, "gen-sink": SINK, "gen-producer exporter": EXPORTER}


def listing() -> list[dict[str, object]]:
    """Return every metric as data, for ``--list --json`` and for the docs."""
    return [
        {
            "name": metric.name,
            "service": service,
            "kind": metric.kind,
            "labels": list(metric.labels),
            "help": metric.help,
        }
        for service, metrics in SERVICES.items()
        for metric in metrics
    ]
