"""RQ's worker, with what its jobs import loaded before it forks, as RQ's documentation advises."""

from __future__ import annotations

import asking
from rq import Worker


class Preloaded(Worker):
    """The stock worker; this module has imported the rest."""

    loaded = asking
