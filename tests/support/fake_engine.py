"""The stand-in for SGLang as tests use it: under the supervisor, or attached to by its url."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from consumer.engine.api import EngineSpec, Launch
from consumer.engine.guard import KEY_VARIABLE
from consumer.engine.sglang import SglangEngine
from tests.support import forge
from tests.support.servers import eventually
from tests.support.tiny_tokenizer import build_model_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).parents[2]
PROGRAM = ("-m", "tests.support.fake_sglang")


class FakeSglang(SglangEngine):
    """SGLang's dialect with the stand-in behind it; ``spec.flags`` are the stand-in's flags."""

    def launch(self, spec: EngineSpec) -> Launch:
        argv = [sys.executable, *PROGRAM, "--model", spec.model]
        argv += ["--host", spec.host, "--port", str(spec.port)]
        if spec.max_running is not None:
            argv += ["--max-running-requests", str(spec.max_running)]
        if spec.context is not None:
            argv += ["--context-length", str(spec.context)]
        if spec.reproducible:
            argv.append("--enable-deterministic-inference")
        env = {KEY_VARIABLE: spec.api_key, "PYTHONPATH": str(ROOT)}
        return Launch((*argv, *spec.flags), env)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fake_spec(state_dir: Path, *flags: str, **fields: Any) -> EngineSpec:
    """A spec for :class:`FakeSglang`, with a model folder of its own under ``state_dir``."""
    model = build_model_folder(state_dir / "tiny-model")
    values = {"gpu": None, "url": None, "port": free_port(), "api_key": secrets.token_hex(8)}
    return EngineSpec(
        **{"model": str(model), "state_dir": state_dir, "flags": flags, **values, **fields}
    )


async def set_faults(spec: EngineSpec, **faults: Any) -> None:
    await _control(spec, "POST", "/fake/faults", faults)


async def fake_state(spec: EngineSpec) -> dict[str, Any]:
    return await _control(spec, "GET", "/fake/state", None)


async def _control(spec: EngineSpec, method: str, path: str, body: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {spec.api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, spec.base_url + path, json=body) as response,
    ):
        response.raise_for_status()
        return dict(await response.json())


@contextlib.asynccontextmanager
async def running_fake(state_dir: Path, *flags: str, **fields: Any) -> AsyncIterator[EngineSpec]:
    """Run a stand-in that belongs to the test; yields a spec with its url, ready to attach to."""
    spec = fake_spec(state_dir, *flags, **fields)
    launch = FakeSglang().launch(spec)
    command = ["sglang", *launch.argv[1 + len(PROGRAM) :]]
    env = {**os.environ, KEY_VARIABLE: spec.api_key}
    log = state_dir / f"stand-in-{spec.port}.log"
    with log.open("wb") as file:
        process = forge.Popen(command, env=env, stdout=file)
    try:
        await eventually(lambda: b"ready to roll" in log.read_bytes() or process.poll(), 30)
        yield dataclasses.replace(spec, url=f"http://{spec.host}:{spec.port}")
    finally:
        process.kill()
        process.wait(10)
