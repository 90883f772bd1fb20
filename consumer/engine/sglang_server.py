"""Start SGLang's own server with a key that stands in no command line.

Run as a file of its own. The key comes by an environment variable and goes to SGLang's parser
inside this process; everything else is SGLang's stock entry point. A second variable turns off the
vision side of a model, for releases that have no flag for that (seen with 0.5.17).
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

KEY_VARIABLE = "GENQ_ENGINE_API_KEY"
TEXT_ONLY_VARIABLE = "GENQ_ENGINE_TEXT_ONLY"


def main() -> None:
    """Become ``python -m sglang.launch_server`` with the key added."""
    key = os.environ.pop(KEY_VARIABLE, "")
    if key:
        sys.argv += ["--api-key", key]
    if os.environ.pop(TEXT_ONLY_VARIABLE, ""):
        text_only()
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


def text_only() -> None:
    """Have parsed arguments say "not multimodal" before the server's settings are made of them."""
    from sglang.srt.server_args import ServerArgs  # noqa: PLC0415 - heavy, and only here

    stock = ServerArgs.from_cli_args

    def from_cli_args(parsed: Any) -> Any:
        parsed.enable_multimodal = False
        return stock(parsed)

    ServerArgs.from_cli_args = staticmethod(from_cli_args)


if __name__ == "__main__":
    main()
