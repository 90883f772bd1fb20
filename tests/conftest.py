"""Fixtures for all tests. Each test process (each pytest-xdist worker) has its own servers."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import redis
import structlog

from common.s3 import open_store
from common.settings import CONFIG_FILE_VARIABLE, Settings, load_settings, names_of
from common.telemetry import logs
from tests.support import leaks, servers
from tests.support.consumers import World, world_of
from tests.support.fake_engine import running_fake
from tests.support.producers import Producer
from tests.support.queues import QueueBench
from tests.support.sinks import sink_lab

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from common.objectstore import ObjectStore
    from consumer.engine.api import EngineSpec
    from deploy.embedded import RedisServer, S3Server
    from tests.support.producers import Said
    from tests.support.sinks import SinkLab

ENGINE_KEY = secrets.token_hex(16)  # of the stand-ins that tests attach to, as of real servers


def pytest_configure(config: pytest.Config) -> None:
    leaks.pytest_configure(config)  # no output of ours holds a secret
    leaks.know(ENGINE_KEY, "key of the engine")
    # No example fails by the clock: a busy machine is no fault of the code. Nor by the draw: the
    # gate is the same for every change, and --hypothesis-profile=explore looks for new examples.
    common = hypothesis.settings(
        deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.register_profile("explore", common)
    hypothesis.settings.register_profile("genq", common, derandomize=True)
    hypothesis.settings.load_profile("genq")
    # What an image may have switched off: each service of a test would compile all of ours anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Undo what a shell does to background jobs: Ctrl-C would be ignored by all children, too.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer's shell says must not reach the tests."""
    names = {name for field in Settings.model_fields for name in names_of(field)}
    for name in [*names, CONFIG_FILE_VARIABLE]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _logging_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that a test runs in this process sets logging up for its own life only."""
    monkeypatch.setattr(logs, "CACHE_LOGGERS", False)
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.configure(**before)
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(capture=False)


@pytest.fixture(scope="session")
def _redis_session() -> Iterator[RedisServer]:
    with servers.redis_server() as server:
        yield server


@pytest.fixture
def redis_server(_redis_session: RedisServer) -> RedisServer:
    """The session's Valkey, empty. Do not stop it: `servers.redis_server()` gives one to break."""
    with redis.Redis.from_url(_redis_session.url) as client:
        client.flushall()
        client.function_flush()
        client.script_flush()
    return _redis_session


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The session's S3 server. Do not stop it: `servers.s3_server()` gives one to break."""
    with servers.s3_server() as server:
        yield server


@pytest.fixture
def store_settings(s3_server: S3Server) -> dict[str, str]:
    """The settings (for `load_settings`) that lead to a fresh prefix of the session's store."""
    return s3_server.settings(prefix=f"t{secrets.token_hex(6)}")


@pytest.fixture
def store(store_settings: dict[str, str]) -> ObjectStore:
    return open_store(load_settings(**store_settings))


@pytest.fixture
def settings(redis_url: str, store_settings: dict[str, str], tmp_path: Path) -> Settings:
    """The settings of a service that uses the session's servers and a state folder of its own."""
    return load_settings(
        redis_url=redis_url,
        state_dir=tmp_path / "state",
        engine_key=ENGINE_KEY,
        **store_settings,
    )


@pytest.fixture
def service_env(redis_url: str, store_settings: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment for a service in a subprocess: the same as `settings`."""
    ours = {f"GENQ_{name.upper()}": value for name, value in store_settings.items()}
    return {
        **os.environ,
        **ours,
        "GENQ_REDIS_URL": redis_url,
        "GENQ_ENGINE_KEY": ENGINE_KEY,
        "GENQ_STATE_DIR": str(tmp_path / "state"),
    }


@pytest.fixture
async def bench(redis_url: str) -> AsyncIterator[QueueBench]:
    """A run on the session's Valkey, and what tests of the queue do to it."""
    bench = QueueBench(redis_url)
    yield bench
    bench.sync.close()
    await bench.client.aclose()


@pytest.fixture
async def world(
    settings: Settings, store: ObjectStore, service_env: dict[str, str], tmp_path: Path
) -> AsyncIterator[World]:
    """What consumers work with: runs, a store, settings."""
    async with world_of(settings, store, service_env, tmp_path) as made:
        yield made


@pytest.fixture
async def engine(world: World) -> AsyncIterator[EngineSpec]:
    """A stand-in for SGLang that answers at once."""
    async with running_fake(world.folder, api_key=ENGINE_KEY) as spec:
        yield spec


@pytest.fixture
async def slow_engine(world: World) -> AsyncIterator[EngineSpec]:
    """Its answers end by their limit only, at 50 tokens a second."""
    flags = ("--token-seconds", "0.02", "--answer-tokens", "100000")
    async with running_fake(world.folder, *flags, api_key=ENGINE_KEY) as spec:
        yield spec


@pytest.fixture
async def processes(settings: Settings, service_env: dict[str, str]) -> AsyncIterator[SinkLab]:
    """Jobs, and sinks as processes."""
    async with sink_lab(settings, service_env) as made:
        yield made


@pytest.fixture
def producer(
    service_env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Producer:
    """gen-producer in this process, on the session's servers."""
    leaks.know_variables(service_env)
    return Producer(service_env, monkeypatch, capsys)


@pytest.fixture
def ask(producer: Producer) -> Callable[..., Awaitable[Said]]:
    """gen-producer, beside the test's event loop."""

    def asked(*words: Any, code: int = 0) -> Awaitable[Said]:
        return asyncio.to_thread(producer, *words, code=code)

    return asked


TOGETHER = (
    "tests/acceptance/test_completions.py",
    "tests/integration/test_secured_run.py",
    "tests/test_architecture.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let all tests of a file in TOGETHER run in one process: what they look at is costly.

    That is what the mark xdist_group is for, but xdist 3.8 notes the group in an attribute that
    pytest 9.2 no longer has, and the mark does nothing.
    """
    from xdist.scheduler import LoadGroupScheduling  # noqa: PLC0415 - only where xdist runs

    class Grouped(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return path if path in TOGETHER else super()._split_scope(nodeid)

    return Grouped(config, log) if config.getvalue("dist") == "loadgroup" else None


LONG = ("acceptance/", "faults/test_chaos", "faults/test_hosts", "property/", "test_secured_run")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, in whatever order: no process shall end with one alone."""
    items.sort(key=lambda item: not any(part in item.nodeid for part in LONG))
