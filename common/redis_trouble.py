"""What a refusal of Redis means, and the way out: one table for every place that meets one.

Pure: it knows the server's words, not its client library.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import QueueAwayError, QueueError, QueueFullError


@dataclass(frozen=True, slots=True)
class Trouble:
    """What Redis does (to be put after its name), what to do about it, and our error for it."""

    does: str
    fix: str
    kind: type[QueueError] = QueueError


_TABLE: tuple[tuple[tuple[str, ...], Trouble], ...] = (
    (
        ("OOM ", "used memory > 'maxmemory'"),
        Trouble(
            "is full",
            "redis-cli CONFIG SET maxmemory ..., or let the sink catch up.",
            QueueFullError,
        ),
    ),
    (
        ("READONLY", "can't write against a read only replica"),
        Trouble(
            "is a replica and takes no writes",
            "Point GENQ_REDIS_URL at the primary; after a fail-over to it work goes on by itself.",
        ),
    ),
    (
        ("MISCONF", "NOREPLICAS"),
        Trouble(
            "cannot make writes safe",
            "Free space on its disk, or bring its replicas back; its log says which.",
        ),
    ),
    (
        ("LOADING", "loading the dataset"),
        Trouble("is still reading its data", "Wait: work goes on by itself.", QueueAwayError),
    ),
    (
        ("BUSY ", "running a script", "running a slow script"),
        Trouble(
            "is kept busy by a script",
            "Wait until it ends; one that does not: redis-cli SCRIPT KILL",
            QueueAwayError,
        ),
    ),
    (
        ("WRONGPASS", "NOAUTH", "invalid username-password", "Authentication required"),
        Trouble(
            "refuses the password",
            "Put user and password into GENQ_REDIS_URL: redis://USER:PASSWORD@HOST",
        ),
    ),
    (
        ("NOPERM", "no permissions", "No permissions", "ACL failure"),
        Trouble("denies a command", "Give the user the rights that deploy/users.acl names for it."),
    ),
    (
        ("max number of clients",),
        Trouble(
            "has no connection left",
            "redis-cli CONFIG SET maxclients ..., or end clients that are not needed.",
        ),
    ),
    (
        ("protected mode", "DENIED "),
        Trouble(
            "is in protected mode: without a password it serves its own host only",
            "Set a password there (requirepass), and put it into GENQ_REDIS_URL.",
        ),
    ),
    (
        ("SSL", "WRONG_VERSION_NUMBER"),
        Trouble(
            "does not speak TLS as asked",
            "Use redis:// where it has no TLS, rediss:// where it has; see its tls-port.",
        ),
    ),
    (
        ("Too many open files",),
        Trouble(
            "cannot be reached: this process has no file descriptor left",
            "Raise the limit, and start again: ulimit -n 65536    (systemd: LimitNOFILE=65536)",
        ),
    ),
    (
        ("CLUSTERDOWN", "CROSSSLOT", "MOVED ", "ASK "),
        Trouble(
            "runs in cluster mode", "Use a single server, with replicas and Sentinel if wanted."
        ),
    ),
)


def trouble(text: str) -> Trouble | None:
    """Return what the words of a refusal mean; None where they are not known."""
    return next((found for marks, found in _TABLE if any(mark in text for mark in marks)), None)
