"""``gen-consumer --print-command``: the engine's start as a shell script, to start it by hand."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from common.model import locate_model
from consumer.engine.guard import KEY_VARIABLE
from consumer.engine.launch import sglang_launch
from consumer.engine.sglang_flags import TEXT_ONLY, flags_for, newest_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumer.tuning.choice import Choice

PORT = 30000
_KEY = "GENQ_ENGINE_KEY"


def script(choice: Choice, version: str) -> str:
    """Return a script for /bin/sh. It holds no secret: the key comes from the environment.

    It starts what the consumer would start, without the consumer's wrapper: the key then stands in
    the process list of that machine.

    Args:
        choice: the engine's settings, and the profile that they came from.
        version: the release whose flag names are wanted; "" is the newest.

    Raises:
        UsageError: a flag is one that the consumer sets itself.
        EngineError: the release does not know a flag.
    """
    spec = replace(choice.spec, port=PORT, api_key="")
    model = spec.model if (path := locate_model(spec.model)) is None else str(path)
    flags = flags_for(version, spec.flags)
    launch = sglang_launch(spec, model, flags)
    words = launch.argv[launch.argv.index("--model-path") :]
    head = [
        "#!/bin/sh",
        f"# SGLang {version or '(newest flag names)'} as gen-consumer would start it.",
        f"# {_origin(choice)}",
        *_left_out(version, spec.flags, flags),
        "# Then, with the same key:",
        f"#   gen-consumer --url {spec.base_url} --model {shlex.quote(spec.model)}",
        "set -eu",
        f': "${{{_KEY}:?set it to a secret of your own}}"',
        *(
            f"export {name}={shlex.quote(value)}"
            for name, value in launch.env.items()
            if name != KEY_VARIABLE
        ),
    ]
    lines = ["exec python3 -m sglang.launch_server", *_lines(words), f'--api-key "${_KEY}"']
    return "\n".join([*head, " \\\n  ".join(lines)]) + "\n"


def _left_out(version: str, wanted: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return comments on flags that the release does not know: the start is another without."""
    known = {_name(word) for word in flags}
    names = dict.fromkeys(_name(word) for word in wanted if word.startswith("--"))
    lines = []
    for name in (name for name in names if name not in known):
        lines.append(f"# Left out: SGLang {version} does not know {name}.")
        if name == TEXT_ONLY:
            lines += [
                "# gen-consumer's own start makes up for that. By hand room is kept back for",
                "# pictures: fewer requests run at once, and fewer tokens are cached.",
            ]
    return lines


def _name(word: str) -> str:
    return newest_name(word.partition("=")[0])


def _lines(words: Sequence[str]) -> list[str]:
    """Return each flag with its values as one line."""
    lines: list[str] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += " " + shlex.quote(word)
    return lines


def _origin(choice: Choice) -> str:
    if choice.profile is None:
        return f"No profile: {choice.why}."
    window = choice.spec.window
    most = f", at most {window} requests in flight" if window else ""
    return f"Profile {choice.profile.name}: {choice.why}{most}."
