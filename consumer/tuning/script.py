"""``gen-consumer --print-command``: the engine's start as a shell script, to start it by hand."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from common.model import locate_model
from consumer.engine.launch import refuse_reserved
from consumer.engine.sglang_flags import flags_for

if TYPE_CHECKING:
    from consumer.engine.api import EngineSpec
    from consumer.tuning.choice import Choice

PORT = 30000
_KEY = "GENQ_ENGINE_KEY"


def script(choice: Choice, version: str) -> str:
    """Return a script for /bin/sh. It holds no secret: the key comes from the environment.

    Args:
        choice: the engine's settings, and the profile that they came from.
        version: the release whose flag names are wanted; "" is the newest.

    Raises:
        UsageError: a flag is one that the consumer sets itself.
        EngineError: the release does not know a flag.
    """
    spec = choice.spec
    refuse_reserved(spec.flags)
    model = spec.model if (path := locate_model(spec.model)) is None else str(path)
    url = f"http://127.0.0.1:{PORT}"
    head = [
        "#!/bin/sh",
        f"# SGLang {version or '(newest flag names)'} as gen-consumer would start it.",
        f"# {_origin(choice)}",
        "# Then, with the same key:",
        f"#   gen-consumer --url {url} --model {shlex.quote(spec.model)}",
        "set -eu",
        f': "${{{_KEY}:?set it to a secret of your own}}"',
    ]
    if spec.gpu is not None:
        head.append(f"export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={spec.gpu}")
    words = _words(spec, model, flags_for(version, spec.flags))
    command = " \\\n  ".join(["exec python3 -m sglang.launch_server", *words])
    return "\n".join([*head, command]) + "\n"


def _words(spec: EngineSpec, model: str, flags: tuple[str, ...]) -> list[str]:
    pairs = [
        ("--model-path", model),
        ("--host", "127.0.0.1"),
        ("--port", str(PORT)),
        ("--enable-metrics",),
    ]
    if spec.max_running is not None:
        pairs.append(("--max-running-requests", str(spec.max_running)))
    if spec.context is not None:
        pairs.append(("--context-length", str(spec.context)))
    lines = [" ".join(map(shlex.quote, pair)) for pair in pairs]
    lines.append(f'--api-key "${_KEY}"')
    for flag in flags:
        if flag.startswith("--") or not lines:
            lines.append(shlex.quote(flag))
        else:
            lines[-1] += " " + shlex.quote(flag)
    return lines


def _origin(choice: Choice) -> str:
    if choice.profile is None:
        return f"No profile: {choice.why}."
    window = choice.spec.window
    most = f", at most {window} requests in flight" if window else ""
    return f"Profile {choice.profile.name}: {choice.why}{most}."
