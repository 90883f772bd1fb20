"""Places where a test may kill the process, as ``kill -9`` would.

A module that owns steps worth dying between declares their names when it is imported, and calls
:func:`hit` at each. Crash tests enumerate :func:`declared`, so a new step cannot be forgotten.
Outside tests ``GENQ_FAILPOINT`` is unset and a hit costs one dictionary lookup.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "GENQ_FAILPOINT"
_declared: set[str] = set()


def declare(*names: str) -> None:
    """Make ``names`` known: the importing module hits each of them somewhere."""
    _declared.update(names)


def declared(prefix: str = "") -> list[str]:
    """Return all names that imported modules declared and that begin with ``prefix``, sorted."""
    return sorted(name for name in _declared if name.startswith(prefix))


def hit(name: str) -> None:
    """Kill this process by SIGKILL if ``GENQ_FAILPOINT`` is ``name``; else do nothing.

    Raises:
        LookupError: no module declared the name, so no crash test would know it.
    """
    if name not in _declared:
        raise LookupError(f"failpoint {name!r} is not declared")
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
