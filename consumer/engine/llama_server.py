"""The embedded llama-server: one small Python process around the xllamacpp package.

Run as a file of its own. Ends at SIGTERM at once, whatever is in flight: its owner drains first.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading

KEY_VARIABLE = "GENQ_ENGINE_API_KEY"


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line; ends the process with code 2 on an unknown flag."""
    parser = argparse.ArgumentParser(prog="llama_server", allow_abbrev=False)
    parser.add_argument("--model", required=True, help="a .gguf file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=4, help="requests that run at once")
    parser.add_argument("--context", type=int, default=4096, help="tokens of one request")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=512, help="prompt tokens in one step")
    parser.add_argument("--gpu-layers", type=int, default=-1)
    return parser.parse_args(argv)


def main() -> None:
    """Serve until killed."""
    args = arguments(sys.argv[1:])
    key = os.environ.pop(KEY_VARIABLE, "")
    import xllamacpp  # noqa: PLC0415 - a wrong flag is told without loading it

    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.hostnames = [args.host]
    params.port = args.port
    params.n_parallel = args.slots
    params.n_ctx = args.slots * args.context
    params.n_batch = args.batch
    params.n_gpu_layers = args.gpu_layers
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.ui = False
    # By default up to 8 GiB of old prompts are kept in memory beside the slots' own caches.
    params.cache_ram_mib = 0
    if key:
        params.api_keys = [key]
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)  # noqa: T201 - goes to the engine's log
    threading.Event().wait()


if __name__ == "__main__":
    main()
