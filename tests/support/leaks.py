"""A pytest plugin: a test fails if what it printed or left behind holds a secret.

Looked through when a test is over: what pytest captured of it (stdout, stderr, log), what it read
of commands (``capsys``, ``communicate``, and so ``subprocess.run``), the words of its failure, the
text files in its ``tmp_path`` and in folders named ``genq-*`` that it removed, and, when the next
test is another file's, those in folders that tests of a file share.

Known as secrets: the passwords and keys of all servers that ``deploy.embedded`` starts here, what
is given to any process that is started here in a variable for secrets (also an engine's own key),
what ``gen-local`` keeps, and what :func:`know` is told. A text of under 12 characters is no secret.

Not looked through: binary files, files of over 8 MiB, what a test reads from a pipe by itself.
The secrets themselves are in no report: they are blacked out there.
"""

from __future__ import annotations

import asyncio.subprocess
import json
import os
import re
import shutil
import stat
import subprocess
from fnmatch import fnmatch
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from common.settings import Settings, is_secret, names_of
from consumer.engine.guard import KEY_VARIABLE
from deploy import embedded

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from _pytest.tmpdir import TempPathFactory

SHORTEST = 12
LARGEST_BYTES = 8 << 20
NEAR = 60  # characters of the place that a report shows
_PASSWORD = re.compile(r"(?:\w+://)?[^:@/]*:(?P<password>.+)@[^@]*", re.DOTALL)
_NAMES = {"s3_access_key": "which of the keys it is: the S3 server logs that"}
_VARIABLES = {
    *(
        name
        for field in Settings.model_fields
        if is_secret(field) and field not in _NAMES
        for name in names_of(field)
    ),
    *(KEY_VARIABLE, "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "RQ_REDIS_URL"),
}

# Files that hold secrets by design, each with the reason; those of ours have to be private.
OURS = {
    "stack.json": "gen-local keeps the credentials of its stack there",
    "env": "gen-local writes it for a shell that is to reach its stack",
}
GIVEN = {
    "genq.toml": "settings as a person writes them, and broken ones",
    "redis-url*": "what GENQ_REDIS_URL_FILE names; deploy/make-secrets.sh writes such ones, too",
    "s3-secret-key": "the same of GENQ_S3_SECRET_KEY_FILE",
    "credentials": "what AWS_SHARED_CREDENTIALS_FILE names",
}
# The same for commands that print secrets, by a piece of the command line.
MAY_SHOW = {
    "s/^user $user on/": "the lines of SECURITY.md print each password that they give, once",
    "weed shell -master=": "the S3 server's own tool answers with each key that it is told",
}

_known = {"planted-secret": "a planted secret"}  # part of each that tests plant


def know(text: str, what: str) -> None:
    """Let ``text`` be a secret from now on; ``what`` names it in reports."""
    if len(text) >= SHORTEST:
        _known.setdefault(text, what)


def know_variables(env: Mapping[str, str]) -> None:
    """Let all be secret that an environment holds in variables that are for secrets."""
    for name in _VARIABLES & env.keys():
        value = str(env[name])
        url = _PASSWORD.fullmatch(value)
        if url or "://" not in value:
            know(url["password"] if url else value, name)


def blacked_out(text: str) -> str:
    for secret, what in _known.items():
        text = text.replace(secret, f"<{what}>")
    return text


def secrets_in(text: str | bytes) -> list[tuple[str, str]]:
    """Return which secrets are in a text: what each is, and where it stands."""
    if isinstance(text, bytes):
        if not any(secret.encode() in text for secret in _known):
            return []
        text = text.decode(errors="replace")
    return [
        (what, blacked_out(text[max(0, at - NEAR) : at + len(secret) + NEAR]))
        for secret, what in _known.items()
        if (at := text.find(secret)) >= 0
    ]


# --- the plugin


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watch(config), "genq-leaks")


class Watch:
    """Hears what tests show, and looks through it when each is over."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._heard: list[tuple[str, str | bytes]] = []
        self._found: list[str] = []
        self._own: set[Path] = set()  # what was looked through as some test's own folder
        self._seen: set[tuple[str, int, int]] = set()
        self._file_is_over = False
        self._patch = pytest.MonkeyPatch()
        self._listen()

    def pytest_unconfigure(self) -> None:
        self._patch.undo()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None]:
        self._file_is_over = nextitem is None or nextitem.path != item.path
        yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            _hide_arguments(report)
            self._heard.append(("the failure", report.longreprtext))
        if call.when == "teardown":
            self._judge(item, report)
        if report.failed and secrets_in(report.longreprtext):
            report.longrepr = blacked_out(report.longreprtext)
        report.sections = [(name, blacked_out(text)) for name, text in report.sections]
        return report

    def _judge(self, item: pytest.Item, report: pytest.TestReport) -> None:
        for place, text in [*report.sections, *self._heard]:
            self._look_at(place, text)
        folder = getattr(item, "funcargs", {}).get("tmp_path")
        if isinstance(folder, Path):
            self._own.add(folder)
            self._look_below(folder)
        if self._file_is_over:
            self._look_at_shared_folders()
        if self._found:
            words = "\n".join(["Secrets can be read:", *dict.fromkeys(self._found)])
            report.sections.append(("leaks", words))
            if report.passed:
                report.outcome, report.longrepr = "failed", words
        self._heard, self._found = [], []

    def _look_at(self, place: str, text: str | bytes) -> None:
        self._found += [f"  {what}, in {place}: {near!r}" for what, near in secrets_in(text)]

    def _look_at_shared_folders(self) -> None:
        factory: TempPathFactory = self._config._tmp_path_factory  # type: ignore[attr-defined]
        if factory._basetemp is not None:  # a test had a folder
            for folder in set(factory.getbasetemp().iterdir()) - self._own:
                if folder.is_dir() and not folder.is_symlink():
                    self._look_below(folder)

    def _look_below(self, folder: Path) -> None:
        files = list(_files(folder))
        for path, _ in files:  # first, since the same folder's logs are looked at for them
            if path.name == "stack.json":
                _know_stack(path)
        for path, about in files:
            mark = (str(path), about.st_mtime_ns, about.st_size)
            if mark in self._seen or _may_hold(path, about):
                continue
            self._seen.add(mark)
            self._look_at(str(path), _text(path))

    # --- what it hears

    def _listen(self) -> None:
        """Have the calls by which tests learn of secrets and of output tell of them."""
        self._after(embedded, "start_redis", lambda at, _: know(at.password, "password of a Redis"))
        self._after(embedded, "start_s3", lambda at, _: know(at.secret_key, "secret key of an S3"))
        self._after(pytest.CaptureFixture, "readouterr", self._hear_captured)
        self._after(subprocess.Popen, "communicate", self._hear_command)
        self._before(subprocess.Popen, "__init__", _know_environment)
        self._before(shutil, "rmtree", self._look_before_removal)
        process = asyncio.subprocess.Process
        real = process.communicate

        async def communicate(this: Any, *args: Any, **more: Any) -> Any:
            said = await real(this, *args, **more)
            self._hear_command(said, this)
            return said

        self._patch.setattr(process, "communicate", communicate)

    def _after(self, owner: Any, name: str, tell: Callable[[Any, Any], None]) -> None:
        real = getattr(owner, name)

        @wraps(real)
        def call(*args: Any, **more: Any) -> Any:
            result = real(*args, **more)
            tell(result, args[0] if args else None)
            return result

        self._patch.setattr(owner, name, call)

    def _before(self, owner: Any, name: str, tell: Callable[..., None]) -> None:
        real = getattr(owner, name)

        @wraps(real)
        def call(*args: Any, **more: Any) -> Any:
            tell(*args, **more)
            return real(*args, **more)

        self._patch.setattr(owner, name, call)

    def _hear_captured(self, said: Any, _: Any) -> None:
        self._heard += [("what capsys read of stdout", said.out), ("of stderr", said.err)]

    def _hear_command(self, said: tuple[Any, Any], process: Any) -> None:
        words = getattr(process, "args", ())
        line = words if isinstance(words, str) else " ".join(map(os.fsdecode, words))
        if not any(piece in line for piece in MAY_SHOW):
            self._heard += [(f"what `{blacked_out(line)[:200]}` said", one) for one in said if one]

    def _look_before_removal(self, path: Any, *args: Any, **more: Any) -> None:
        folder = Path(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else None
        if folder is not None and folder.name.startswith("genq-"):
            self._look_below(folder)


def _know_environment(this: Any, *args: Any, **more: Any) -> None:
    know_variables(more.get("env") or os.environ)


def _know_stack(path: Path) -> None:
    try:
        kept = json.loads(path.read_bytes())
    except ValueError:  # a test broke it
        return
    for name in ("redis_password", "s3_secret_key"):
        know(str(kept.get(name, "")), f"{name} of gen-local")


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the regular files below a folder that are small enough; links are not followed."""
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            try:
                about = path.lstat()
            except OSError:  # gone: something still ends there
                continue
            if stat.S_ISREG(about.st_mode) and 0 < about.st_size <= LARGEST_BYTES:
                yield path, about


def _may_hold(path: Path, about: os.stat_result) -> bool:
    private = not about.st_mode & 0o077
    return (private and path.name in OURS) or any(fnmatch(path.name, name) for name in GIVEN)


def _text(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError:
        return b""
    return b"" if b"\0" in data[:4096] else data


def _hide_arguments(report: pytest.TestReport) -> None:
    """Black secrets out of the arguments that pytest quotes of a test that failed."""
    chain = getattr(report.longrepr, "chain", [])
    for traceback, *_ in chain:
        for entry in traceback.reprentries:
            arguments = getattr(entry, "reprfuncargs", None)
            if arguments is not None:
                arguments.args = [(name, blacked_out(text)) for name, text in arguments.args]
