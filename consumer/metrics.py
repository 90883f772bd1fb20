"""A consumer's figures for Prometheus. No prompt text, no ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.cliutil import genq_version
from common.records import Verdict
from common.telemetry.catalogue import CONSUMER
from common.telemetry.readings import Readings
from consumer.engine.gpu_health import FAILURES, THROTTLES
from consumer.engine.states import EngineState

if TYPE_CHECKING:
    from consumer.daemon import Consumer
    from consumer.engine.api import Capacity, EngineLoad, EngineSpec
    from consumer.engine.gpu_health import GpuHealth
    from consumer.engine.supervisor import Supervisor


class ConsumerMetrics:
    """Reads one consumer whenever Prometheus asks, on the asking thread; waits for nothing."""

    def __init__(self, consumer: Consumer, supervisor: Supervisor) -> None:
        self._consumer = consumer
        self._supervisor = supervisor
        self._gpu = _gpu(supervisor.spec)
        self._version = genq_version()

    def read(self) -> Readings:
        """Return every figure as it is now."""
        read = Readings(CONSUMER)
        self._engine(read)
        self._work(read)
        if self._supervisor.load is not None:
            _load(read, self._supervisor.load, self._gpu)
        if (health := self._supervisor.card.health) is not None:
            _card(read, health, self._gpu)
        return read

    def _engine(self, read: Readings) -> None:
        supervisor, gpu = self._supervisor, self._gpu
        facts = supervisor.facts
        model = supervisor.spec.model
        read.set("genq_consumer_info", 1, gpu=gpu, model=model, version=self._version)
        read.one_of("genq_consumer_engine_state", str(supervisor.state), list(EngineState), gpu=gpu)
        read.set("genq_consumer_engine_starts_total", supervisor.incarnation, gpu=gpu)
        most = facts.max_running if facts else None
        read.set("genq_engine_max_running_requests", most, gpu=gpu)
        if facts is not None:
            _capacity(read, facts.capacity, gpu)

    def _work(self, read: Readings) -> None:
        consumer, gpu = self._consumer, self._gpu
        pump, keeper, tally = consumer.pump, consumer.keeper, consumer.outbox.tally
        figures = {
            "genq_consumer_in_flight_items": pump.in_flight,
            "genq_consumer_window_items": pump.window.size if pump.ready else 0,
            "genq_consumer_leased_items": len(keeper),
            "genq_consumer_undelivered_items": len(consumer.outbox),
            "genq_consumer_starved": pump.starved,
            "genq_consumer_completed_items_total": tally.succeeded,
            "genq_consumer_failed_tries_total": tally.failed,
            "genq_consumer_released_items_total": tally.released,
            "genq_consumer_duplicate_items_total": tally.duplicates,
            "genq_consumer_dropped_items_total": tally.dropped,
            "genq_consumer_lost_leases_total": keeper.lost_count,
            "genq_consumer_prompt_tokens_total": tally.prompt_tokens,
            "genq_consumer_completion_tokens_total": tally.completion_tokens,
            "genq_consumer_longest_lag_seconds": keeper.longest_lag_seconds,
        }
        for name, value in figures.items():
            read.set(name, value, gpu=gpu)
        for verdict in Verdict:  # from the first scrape on, so that an increase is seen
            tries = consumer.tried[verdict]
            read.set("genq_consumer_tries_total", tries, gpu=gpu, verdict=str(verdict))


def _gpu(spec: EngineSpec) -> str:
    return "" if spec.gpu is None else str(spec.gpu)


def _capacity(read: Readings, capacity: Capacity, gpu: str) -> None:
    read.set("genq_engine_asked_running_requests", capacity.asked_running, gpu=gpu)
    read.set("genq_engine_state_slots", capacity.state_slots, gpu=gpu)
    read.set("genq_engine_kv_tokens", capacity.kv_tokens, gpu=gpu)


def _load(read: Readings, load: EngineLoad, gpu: str) -> None:
    read.set("genq_engine_running_requests", load.running, gpu=gpu)
    read.set("genq_engine_waiting_requests", load.waiting, gpu=gpu)
    read.set("genq_engine_token_usage_ratio", load.token_usage, gpu=gpu)
    read.set("genq_engine_state_usage_ratio", load.state_usage, gpu=gpu)
    read.set("genq_engine_accepted_tokens", load.accept_length, gpu=gpu)
    read.set("genq_engine_generated_tokens_total", load.generated_tokens, gpu=gpu)
    read.set("genq_engine_retractions_total", load.retractions, gpu=gpu)


def _card(read: Readings, health: GpuHealth, gpu: str) -> None:
    read.set("genq_gpu_up", health.up, gpu=gpu)
    read.set("genq_gpu_memory_used_bytes", health.memory_used_bytes, gpu=gpu)
    read.set("genq_gpu_memory_size_bytes", health.memory_total_bytes, gpu=gpu)
    read.set("genq_gpu_utilization_ratio", health.utilization, gpu=gpu)
    read.set("genq_gpu_temperature_celsius", health.temperature_celsius, gpu=gpu)
    read.set("genq_gpu_power_watts", health.power_watts, gpu=gpu)
    for fault in FAILURES if health.up else ():
        read.set("genq_gpu_failing", fault in health.failing, gpu=gpu, reason=fault)
    for reason in THROTTLES if health.up else ():
        slowed = reason in health.throttled
        read.set("genq_gpu_throttled", slowed, gpu=gpu, reason=reason)
