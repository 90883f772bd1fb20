"""Machines that come up in any order, go down together, have names that do not resolve: rows G."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import secrets
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest

from common.errors import Exit
from common.ids import RunName
from common.objectstore import RunPaths
from common.prove import prove
from common.s3 import open_store
from common.settings import load_settings
from deploy import embedded, processes
from tests.support.fake_engine import running_fake
from tests.support.fleet import SHORT_LEASES, Fleet
from tests.support.servers import eventually_sync
from tests.support.tiny_tokenizer import build_model_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

row = pytest.mark.row
ITEMS = 300
PARTS = ("redis", "s3", "consumer", "sink")


@dataclass
class Machine:
    """Everything of a pipeline, each part to be started and killed at will."""

    folder: Path
    redis: embedded.RedisServer
    s3: embedded.S3Server
    fleet: Fleet
    model: str
    up: list[str] = field(default_factory=list)

    def start(self, part: str) -> None:
        stack = self.fleet.env["GENQ_TEST_STACK"]
        if part == "redis":
            old = self.redis
            self.redis = embedded.start_redis(
                self.folder / "redis", stack=stack, password=old.password, ports=old.ports
            )
            assert self.redis.url == old.url, "its port was taken meanwhile"
        elif part == "s3":
            old_s3 = self.s3
            self.s3 = embedded.start_s3(
                self.folder / "s3",
                stack=stack,
                bucket=old_s3.bucket,
                access_key=old_s3.access_key,
                secret_key=old_s3.secret_key,
                ports=old_s3.ports,
            )
            assert self.s3.endpoint == old_s3.endpoint, "its port was taken meanwhile"
        elif part == "sink":
            self.fleet.start("sink", "gen-sink", "--rows", "20", "--seconds", "1")
        else:
            flags = ("--model", self.model, "--", "--token-seconds", "0.005")
            self.fleet.start("consumer", "gen-consumer", *flags)
        self.up.append(part)

    def kill_all(self) -> None:
        for part in self.up:
            {"redis": self.redis.kill, "s3": self.s3.kill}.get(part, lambda: None)()
            if part in self.fleet.members:
                self.fleet.kill(part)
        self.up.clear()

    def stop_servers(self) -> None:
        self.redis.stop()
        self.s3.stop()

    def says(self, part: str, words: str) -> bool:
        return words in self.fleet.log(part).read_text(errors="replace")

    def committed(self) -> int:
        return self.fleet.counts("one").committed


@contextlib.contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """Servers that were up once, so that their ports are known, and are down now."""
    stack = secrets.token_hex(8)
    with contextlib.ExitStack() as after:
        warden = processes.guard(stack, log=folder / "warden.log")
        after.callback(warden.communicate)  # ends the pipe: what is still there goes
        s3 = embedded.start_s3(folder / "s3", stack=stack, bucket="genq-hosts")
        server = embedded.start_redis(folder / "redis", stack=stack)
        server.stop()
        s3.stop()
        env = {f"GENQ_{name.upper()}": value for name, value in s3.settings("x").items()}
        env |= {"GENQ_REDIS_URL": server.url, "GENQ_TEST_STACK": stack, "GENQ_HONESTY": "false"}
        fleet = Fleet({**os.environ, **env, **SHORT_LEASES}, folder)
        it = Machine(folder, server, s3, fleet, str(build_model_folder(folder / "tiny-model")))
        after.callback(it.stop_servers)
        after.callback(fleet.close)
        yield it


def run_of_a_machine(folder: Path, order: tuple[str, ...], seed: int) -> None:
    """Start in ``order``, load, kill all at once in mid-run, start shuffled, and prove the end."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"q {n}"}) + "\n" for n in range(ITEMS)))
    with machine(folder) as it:
        for part in order:
            it.start(part)
            if part in it.fleet.members and "redis" not in it.up:
                eventually_sync(partial(it.says, part, "waiting for a server"), 60)
                assert it.fleet.alive(part)
        loaded = it.fleet.producer("load", str(rows), "--run", "one", "--model", it.model)
        assert loaded.returncode == 0, loaded.stderr
        try:
            eventually_sync(lambda: it.committed() >= 40, 60)
            it.kill_all()
            for part in random.Random(seed).sample(PARTS, len(PARTS)):
                it.start(part)
            store = open_store(load_settings(**it.s3.settings("x")))
            eventually_sync(lambda: store.stat(RunPaths(RunName("one")).success), 90)
        except AssertionError:
            raise AssertionError(it.fleet.last_words()) from None
        proof = prove(store, RunName("one"))
        assert (proof.problems, proof.committed, proof.dead) == ([], ITEMS, 0)
    assert it.fleet.leftovers() == []


@row("G1")
@row("G3")
@pytest.mark.timeout(240)
def test_services_before_their_servers_and_a_machine_that_goes_down_in_mid_run(tmp_path) -> None:
    run_of_a_machine(tmp_path, ("consumer", "sink", "redis", "s3"), seed=1)


@row("G1")
@row("G3")
@pytest.mark.faults
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("seed", "order"), list(enumerate(itertools.permutations(PARTS))), ids=str)
def test_every_order_of_starting(tmp_path, seed, order) -> None:
    run_of_a_machine(tmp_path, order, seed)


@row("G5")
@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ("GENQ_REDIS_URL=redis://nowhere.invalid:6379/0", Exit.QUEUE, "cannot be reached"),
        ("GENQ_S3_ENDPOINT=http://nowhere.invalid:9000", Exit.STORE, "nowhere.invalid"),
    ],
)
def test_a_name_that_does_not_resolve_is_told_and_waited_for(
    service_env, tmp_path, setting, code, words
) -> None:
    name, _, value = setting.partition("=")
    fleet = Fleet({**service_env, name: value, "GENQ_WAIT_SECONDS": "1"}, tmp_path)
    fleet.start("sink", "gen-sink")
    assert fleet.members["sink"].wait(60) == code
    said = fleet.log("sink").read_text()
    assert said.count("waiting for a server") == 1
    assert words in said


@row("G5")
async def test_an_address_of_ipv6_alone_works(world, redis_server) -> None:
    async def pipe(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", redis_server.ports[0])
        await asyncio.gather(pipe(reader, back), pipe(there, writer))

    await world.load(5)
    listener = await asyncio.start_server(serve, host="::1", port=0)
    async with listener, running_fake(world.folder, api_key="") as engine:
        port = listener.sockets[0].getsockname()[1]
        url = f"redis://:{redis_server.password}@[::1]:{port}/0"
        with world.consume("--url", engine.url, "--burst", GENQ_REDIS_URL=url) as process:
            await asyncio.to_thread(process.wait, 60)
    assert len(world.results()) == 5
