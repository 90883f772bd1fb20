"""The doctor's look at the settings and at this host: values and origins, folder, port, files.

Secrets are never shown, nor what could hold one: an address with a user or a query in it.
"""

from __future__ import annotations

import resource
import shutil
import socket
import tempfile
from typing import TYPE_CHECKING, Any

from common.doctor.findings import Finding, Level, Part, SettingRow, failed
from common.errors import GenqError
from common.private import private_folder
from common.settings import examine_settings, is_secret, origin_of, setting_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from common.settings import Settings

FILES = 1024  # connections of a full consumer (two for each request in flight), and its logs
ROOM_BYTES = 1 << 30
MIB = 1 << 20
HIDDEN = "(hidden)"
_ADDRESSES = ("store", "s3_endpoint")


def look_at_settings(
    flags: Mapping[str, Any],
) -> tuple[Settings | None, list[Finding], list[SettingRow]]:
    """Return the settings, what is wrong with them, and each with its value and origin."""
    settings, problems = examine_settings(**flags)
    findings = [failed(Part.SETTINGS, "settings", problem) for problem in problems]
    if settings is None:
        return None, findings, []
    rows = [
        SettingRow(name, _shown(settings, name), origin_of(name, dict(flags)), is_secret(name))
        for name in setting_names()
    ]
    if not findings:
        own = sum("default" not in row.origin for row in rows)
        what = f"{own} given, {len(rows) - own} by default, none unknown"
        findings.append(Finding(Part.SETTINGS, "settings", Level.OK, what))
    return settings, findings, rows


def _shown(settings: Settings, name: str) -> str:
    from common.redis_client import safe_url  # noqa: PLC0415 - slow to import

    value = getattr(settings, name)
    if name == "redis_url":
        return safe_url(value.get_secret_value())
    if is_secret(name):
        return HIDDEN if value is not None else ""
    text = "" if value is None else str(value)
    if name in _ADDRESSES and ("@" in text or "?" in text):
        return HIDDEN
    return text


def look_at_host(settings: Settings) -> list[Finding]:
    """Return what is to be said of this host for any service."""
    found = [_state_folder(settings.state_dir), _files()]
    if settings.metrics_port is not None:
        found.append(_port(settings.metrics_host, settings.metrics_port))
    return found


def _state_folder(folder: Path) -> Finding:
    name = "state folder"
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        if there == folder:
            private_folder(folder)  # looks at owner and mode; makes nothing, as it is there
        with tempfile.TemporaryFile(dir=there):
            free = shutil.disk_usage(there).free
    except GenqError as error:
        return failed(Part.HOST, name, error)
    except OSError as error:
        return Finding(
            Part.HOST,
            name,
            Level.FAIL,
            f"{folder} cannot be written: {error.strerror}",
            f"chmod u+rwx {there}    (or name another: export GENQ_STATE_DIR=...)",
        )
    said = f"{folder}" + ("" if there == folder else " (made at the first start)")
    if free < ROOM_BYTES:
        fix = "Make room there, or: export GENQ_STATE_DIR=..."
        return Finding(Part.HOST, name, Level.WARN, f"{said}, only {free / MIB:,.0f} MiB free", fix)
    return Finding(Part.HOST, name, Level.OK, f"{said}, {free / MIB:,.0f} MiB free")


def _files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    if soft != endless and soft < FILES:
        fix = "ulimit -n 65536    (systemd: LimitNOFILE=65536)"
        what = f"{soft:,} file descriptors; a busy service may need {FILES:,}"
        return Finding(Part.HOST, "open files", Level.WARN, what, fix)
    said = "no limit" if soft == endless else f"up to {soft:,}"
    return Finding(Part.HOST, "open files", Level.OK, said)


def _port(host: str, port: int) -> Finding:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return Finding(
            Part.HOST,
            "metrics port",
            Level.WARN,
            f"{host}, port {port} cannot be had now: {error.strerror or error}",
            f"ss -ltnp 'sport = :{port}'    (this service itself, where it runs already)",
        )
    return Finding(Part.HOST, "metrics port", Level.OK, f"{host}, port {port} is free")
