"""``python -m common.telemetry.probe [PORT]``: a health check without a shell or curl.

Exits 0 if the service's /healthz answers 200, else 1 with the reason on stderr. The port is that of
``GENQ_METRICS_PORT`` unless it is given, the address that of ``GENQ_METRICS_HOST``.
"""

from __future__ import annotations

import http.client
import os
import sys

HEALTH = "/healthz"
SECONDS = 3.0
PORT_VARIABLE = "GENQ_METRICS_PORT"
HOST_VARIABLE = "GENQ_METRICS_HOST"
LOOPBACK = "127.0.0.1"
ALL_ADDRESSES = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not listened on


def main() -> int:
    """Ask once."""
    port = (sys.argv[1:] or [os.environ.get(PORT_VARIABLE, "")])[0]
    if not port.isdigit():
        print(f"no port: give one, or set {PORT_VARIABLE}", file=sys.stderr)  # noqa: T201 - a program
        return 2
    host = os.environ.get(HOST_VARIABLE, "")
    host = LOOPBACK if host in ALL_ADDRESSES else host
    asking = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    try:
        asking.request("GET", HEALTH)
        answer = asking.getresponse()
        said = answer.read(200).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        print(f"port {port} does not answer: {error}", file=sys.stderr)  # noqa: T201
        return 1
    finally:
        asking.close()
    if answer.status != http.client.OK:
        print(f"status {answer.status}: {said}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
