"""Start SGLang's own server with a key that stands in no command line.

Run as a file of its own. The key comes by an environment variable and goes to SGLang's parser
inside this process; everything else is SGLang's stock entry point.
"""

from __future__ import annotations

import os
import runpy
import sys

KEY_VARIABLE = "GENQ_ENGINE_API_KEY"


def main() -> None:
    """Become ``python -m sglang.launch_server`` with the key added."""
    key = os.environ.pop(KEY_VARIABLE, "")
    if key:
        sys.argv += ["--api-key", key]
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
