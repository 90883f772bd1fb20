"""The Lua scripts of lua/: loaded, called, and their refusals turned into errors of ours.

Each state change is one script, one file. What they share stands once, in ``_run.lua`` (the
run's keys, its epoch, the clock), ``_clock.lua`` (what a clock that was set back must not delay),
``_item.lua`` (how an item moves), ``_dead.lua`` (how failures are kept) and ``_canary.lua`` (how
the first rows are watched), and is put before each: it is as if every script began with it. A
script that was started runs to its end and is alone on the server; it checks what it was given
before its first write.

A script is called by its SHA, and by its text where the server does not know it (any more).
Calls are not repeated here: whoever gives up waiting may call again, and gets the same answer.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError, RedisError, ResponseError

from common.errors import EpochError, QueueError, RunClosedError
from common.keys import RunKeys
from common.redis_trouble import trouble

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    from common.ids import RunName

ANY_EPOCH = "*"
_SHARED = ("_run", "_clock", "_item", "_dead", "_canary")

Argument = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """One script, as the server gets it."""

    name: str
    text: str
    sha: str
    reads_only: bool


@cache
def script(name: str) -> Script:
    """Return a script of lua/ with what all of them share put before it."""
    folder = files("common.queue").joinpath("lua")
    shebang, own = folder.joinpath(f"{name}.lua").read_text("utf-8").split("\n", 1)
    shared = [folder.joinpath(f"{part}.lua").read_text("utf-8") for part in _SHARED]
    text = "\n".join([shebang, *shared, own])
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha, reads_only="no-writes" in shebang)


def script_names() -> list[str]:
    """Return the names of all scripts that can be called."""
    names = (entry.name for entry in files("common.queue").joinpath("lua").iterdir())
    return sorted(
        name.removesuffix(".lua")
        for name in names
        if name.endswith(".lua") and not name.startswith("_")
    )


@cache
def _read_all() -> None:
    """Read every script once: later there may be no file descriptor left, or another release."""
    for name in script_names():
        script(name)


class Scripts:
    """The scripts, called for one run.

    Raises, from every call:
        EpochError: the run is not in this Redis, or it was loaded anew since ``epoch``.
        RunClosedError: the run takes no more work.
        QueueError: the server refused or could not be reached; the call may have been carried
            out, and may be repeated.
    """

    def __init__(self, redis: redis.asyncio.Redis, run: RunName, epoch: str) -> None:
        _read_all()
        self.redis: Any = redis  # execute_command has no types
        self.run = run
        self.epoch = epoch
        self.keys = RunKeys(run)
        self._keys = self.keys.script_keys()

    async def call(self, name: str, *args: Argument) -> Any:
        """Return what the script answers."""
        what = script(name)
        # A user who may only read may call what only reads, and only so.
        suffix = "_RO" if what.reads_only else ""
        given = [len(self._keys), *self._keys, self.run, self.epoch, *args]
        try:
            try:
                return await self.redis.execute_command(f"EVALSHA{suffix}", what.sha, *given)
            except NoScriptError:
                return await self.redis.execute_command(f"EVAL{suffix}", what.text, *given)
        except (RedisError, OSError) as error:
            raise explain(error, self.run, name) from error


def call_sync(redis: redis.Redis, run: RunName, name: str, *args: Argument) -> Any:
    """Call a script from code that blocks, whatever the run's epoch; raises as `Scripts` does."""
    keys = RunKeys(run).script_keys()
    try:
        return redis.eval(script(name).text, len(keys), *keys, run, ANY_EPOCH, *args)
    except (RedisError, OSError) as error:
        raise explain(error, run, name) from error


_LOOK = "What is wrong with it: gen-producer doctor"


def explain(error: BaseException, run: RunName, doing: str) -> QueueError:
    """Return the error of ours that says what a refusal or a failure of Redis means."""
    text = str(error)
    if "GENQ_EPOCH" in text:
        return EpochError(
            f"Run {run} is not in this Redis as it was.",
            why=f"Redis was emptied, restored or replaced ({doing}: {text}).",
            fix=f"gen-producer load --run {run}",
        )
    if "GENQ_CLOSED" in text:
        return run_is_over(run, text.rsplit(maxsplit=1)[-1])
    if known := trouble(text):
        why = f"{doing} of run {run}: {text}"
        return known.kind(f"Redis {known.does}.", why=why, fix=known.fix)
    if isinstance(error, ResponseError):
        return QueueError(f"Redis refused: {doing} of run {run}.", why=text, fix=_LOOK)
    return QueueError(
        "Redis cannot be reached.",
        why=f"{doing} of run {run}: {text or type(error).__name__}",
        fix=f"Start it (redis-server, valkey-server) if it is down. {_LOOK}",
    )


def run_is_over(run: RunName, state: str, what: str = "takes no more work") -> RunClosedError:
    """Return the error that refuses ``what`` of a closed or cancelled run."""
    if state == "cancelled":
        return RunClosedError(
            f"Run {run} {what}: it is cancelled.",
            why="What was queued was dropped; what was committed is there.",
            fix=f"gen-producer load --run {run}    loads the rest again",
        )
    return RunClosedError(
        f"Run {run} {what}: it is finished.",
        why="Every item is committed or dead-lettered.",
        fix=f"gen-producer verify {run}    (where items failed: gen-producer requeue {run})",
    )
