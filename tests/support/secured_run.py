"""One whole run on a Redis with an ACL, at debug level, and all that it left behind."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import sys
import urllib.error
import urllib.request
import zlib
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import producer.cli
from common import codec
from common.errors import Exit
from common.ids import RunName
from common.keys import RunKeys
from common.s3 import open_store
from common.settings import CONFIG_FILE_VARIABLE, Settings, load_settings, names_of
from consumer.engine.guard import KEY_VARIABLE
from tests.support import forge
from tests.support.leaks import know, know_variables
from tests.support.servers import eventually_sync
from tests.support.tiny_tokenizer import CONTEXT, build_model_folder

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    import redis

    from deploy.embedded import S3Server
    from tests.support.secured import SecuredRedis

ROOT = Path(__file__).parents[2]
RUN = RunName("secured")
KEYS = RunKeys(RUN)
ITEMS = 16
PROMPT = "prompt-that-nobody-may-read"
ROW_ID = "../../row-id-that-names-nothing"
METADATA = "rq:job:metadata-that-is-no-key"
PLANTED = {  # what no command of ours is ever asked for, and must not show either
    "HF_TOKEN": "planted-hub-token",
    "GENQ_ENGINE_KEY": "planted-engine-key",
}
# CONFIG is asked for only to warn of a weak AOF, and done without.
DONE_WITHOUT = {("config|get", "command")}


def clean_environment() -> dict[str, str]:
    """The environment without any setting of the developer's shell."""
    names = {name for field in Settings.model_fields for name in names_of(field)}
    names |= {CONFIG_FILE_VARIABLE, "GENQ_DEBUG", "RQ_REDIS_URL"}
    return {name: value for name, value in os.environ.items() if name not in names}


@dataclass
class SecuredRun:
    """Runs commands as users of the ACL, and keeps what they show."""

    server: SecuredRedis
    s3: S3Server
    folder: Path
    prefix: str = "secured"
    said: dict[str, str] = field(default_factory=dict)
    command_lines: list[str] = field(default_factory=list)
    listening: list[str] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    engine_key: str = ""
    engine_port: int = 0
    engine_answers: dict[str, int] = field(default_factory=dict)
    denied: list[dict[str, str]] = field(default_factory=list)
    denied_to_rq_info: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for secret in self.secrets:
            know(secret, "a secret of the secured run")

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def secrets(self) -> list[str]:
        given = [*self.server.passwords.values(), *PLANTED.values()]
        return [*given, self.s3.secret_key, self.engine_key]

    def env(self, user: str) -> dict[str, str]:
        store = {f"GENQ_{n.upper()}": v for n, v in self.s3.settings(prefix=self.prefix).items()}
        return {
            **clean_environment(),
            **PLANTED,
            **store,
            "GENQ_REDIS_URL": self.server.url(user),
            "RQ_REDIS_URL": self.server.url(user),
            "GENQ_STATE_DIR": str(self.state),
            "GENQ_LOG_LEVEL": "debug",
            "GENQ_LOG_FORMAT": "json",
            "GENQ_DEBUG": "1",
            "GENQ_HONESTY": "false",
            "PYTHONPATH": str(ROOT),
        }

    def call(self, user: str, program: str, *args: str) -> int:
        """Run a command to its end; return its exit code."""
        name = f"{user}: {program} {' '.join(args)}"
        if program == "gen-producer":
            code, self.said[name] = _here(self.env(user), program, *args)
            return code
        how = {"env": self.env(user), "cwd": self.folder, "capture_output": True, "text": True}
        done = forge.run([program, *args], **how)
        self.said[name] = done.stdout + done.stderr
        return done.returncode

    def must(self, user: str, program: str, *args: str) -> None:
        code = self.call(user, program, *args)
        assert code == 0, (code, list(self.said.items())[-1])

    def start(
        self, user: str, program: str, *args: str, name: str = "", **env: str
    ) -> subprocess.Popen[bytes]:
        """Start a service; its log is named like its user, or ``name``."""
        with (self.folder / f"{name or user}.log").open("wb") as log:
            return forge.Popen(
                [program, *args],
                env={**self.env(user), **env},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @cached_property
    def model(self) -> str:
        # Its engine takes less than it could: `load` passes what that refuses.
        return str(build_model_folder(self.folder / "tiny-model", context=2 * CONTEXT))

    def load(self, run: str = RUN) -> None:
        """Load the rows, the first of which is too long; a run that is there, again."""
        rows = self.folder / "rows.jsonl"
        rows.write_text("".join(json.dumps(_row(n)) + "\n" for n in range(ITEMS)))
        words = ("load", str(rows), "--run", run, "--model", self.model)
        words += ("--context", str(2 * CONTEXT))  # what is too long is for the engine to refuse
        self.must("producer", "gen-producer", *words)


def _here(env: dict[str, str], *argv: str) -> tuple[int, str]:
    """Run gen-producer in this process, which saves its imports; return exit code and words."""
    said = io.StringIO()
    know_variables(env)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
        patch.setattr(os, "environ", env)
        patch.setattr(sys, "argv", list(argv))
        with pytest.raises(SystemExit) as ended:
            producer.cli.main()
    return int(ended.value.code or 0), said.getvalue()


def whole_run(server: SecuredRedis, s3: S3Server, folder: Path) -> SecuredRun:
    """Load, look, steer, generate, commit and prove a run; return all that is left of it."""
    this = SecuredRun(server, s3, folder)
    server.denials()
    this.load()
    with server.client("admin") as admin:
        _generate(this, admin)
        this.values += _all_values(admin)
        sink = this.start("sink", "gen-sink", "--run", RUN, "--burst", "--rows", "10")
        _observe(this, sink)
        assert sink.wait(100) == Exit.DEAD_LETTERS, (folder / "sink.log").read_text()
        this.values += _all_values(admin)
    this.must("monitor", "gen-producer", "status", RUN)
    this.must("monitor", "gen-producer", "failed", RUN)
    this.must("monitor", "gen-producer", "exporter", "--once")
    this.must("monitor", "gen-producer", "verify", RUN, "--allow-failures")
    this.load()
    this.said |= {path.name: path.read_text() for path in folder.glob("*.log")}
    this.denied += server.denials()
    store = open_store(load_settings(**s3.settings(prefix=this.prefix)))
    this.objects = {found.key: store.get(found.key) for found in store.list("")}
    return this


def _row(n: int) -> dict[str, Any]:
    times = 1 if n else CONTEXT // len(PROMPT) + 1  # the first is too long for the model
    prompt = f"{PROMPT} {n} " * times
    return {"id": f"{ROW_ID}-{n}", "prompt": prompt, "where": f"{METADATA}/{n}"}


def _generate(this: SecuredRun, admin: redis.Redis) -> None:
    flags = ("--model", this.model, "--max-running", "4", "--metrics-port", str(_free_port()))
    engine = ("--", "--token-seconds", "0.03", "--answer-tokens", "30")
    consumer = this.start("consumer", "gen-consumer", *flags, *engine)
    try:
        eventually_sync(lambda: _alive(consumer, this) and admin.zcard(KEYS.lease), 120)
        _observe(this, consumer)
        _ask_engine(this)
        this.must("monitor", "gen-producer", "status", RUN, "--json")
        this.must("producer", "gen-producer", "pause", RUN)
        this.must("producer", "gen-producer", "resume", RUN)
        this.must("producer", "rq", "info", "--raw")
        this.denied += this.server.denials()
        assert this.call("monitor", "rq", "info", "--raw") == 1
        this.denied_to_rq_info = this.server.denials()
        eventually_sync(lambda: _alive(consumer, this) and admin.xlen(KEYS.stream) == ITEMS - 1, 60)
        consumer.send_signal(signal.SIGTERM)
        assert consumer.wait(100) == 143, (this.folder / "consumer.log").read_text()
    finally:
        if consumer.poll() is None:
            consumer.kill()
            consumer.wait()


def _alive(process: subprocess.Popen[bytes], this: SecuredRun) -> bool:
    assert process.poll() is None, (this.folder / "consumer.log").read_text()
    return True


def _free_port() -> int:
    from consumer.start import free_port  # noqa: PLC0415 - heavy, and only here

    return free_port()


def _observe(this: SecuredRun, process: subprocess.Popen[bytes]) -> None:
    """Note command lines and listening sockets of a service and of all that it started."""
    with suppress(psutil.NoSuchProcess):  # a sink may be done already
        service = psutil.Process(process.pid)
        for one in (service, *service.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                this.command_lines.append(" ".join(one.cmdline()))
                ports = [c for c in one.net_connections("inet") if c.status == psutil.CONN_LISTEN]
                this.listening += [f"{c.laddr.ip}:{c.laddr.port}" for c in ports]
                if KEY_VARIABLE in one.environ() and ports:
                    this.engine_key = one.environ()[KEY_VARIABLE]
                    know(this.engine_key, "the engine's own key")
                    this.engine_port = ports[0].laddr.port


def _ask_engine(this: SecuredRun) -> None:
    """Ask the engine for something with no key, a wrong one and its own; note the answers."""
    for name, key in (("none", ""), ("wrong", "guess"), ("own", this.engine_key)):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = f"http://127.0.0.1:{this.engine_port}/server_info"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=10
            ) as answer:
                this.engine_answers[name] = answer.status
        except urllib.error.HTTPError as error:
            this.engine_answers[name] = error.code


def _all_values(client: redis.Redis) -> list[bytes]:
    """Every key, field, member and value that Redis holds."""
    found: list[bytes] = []
    for key in client.scan_iter(count=1000):
        found += [key, *_flat(_read(client, key))]
    return found


def _read(client: redis.Redis, key: bytes) -> Any:
    kind = client.type(key).decode()
    readers = {
        "string": client.get,
        "list": lambda key: client.lrange(key, 0, -1),
        "hash": client.hgetall,
        "set": client.smembers,
        "zset": lambda key: client.zrange(key, 0, -1),
        "stream": client.xrange,
    }
    return readers[kind](key)


def _flat(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _flat(pair)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _flat(inner)


def unwrapped(data: bytes) -> Iterator[bytes]:
    """Yield ``data`` and whatever is packed inside it, by base64, zlib or zstd."""
    yield data
    with suppress(ValueError):
        inner = base64.b64decode(data, validate=True)
        if inner and inner != data:
            yield from unwrapped(inner)
    with suppress(zlib.error):
        yield from unwrapped(zlib.decompress(data))
    with suppress(ValueError):
        yield from unwrapped(codec.decompress(data, limit_bytes=1 << 26)) if data else ()
