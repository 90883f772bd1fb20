"""A stand-in for the Hugging Face hub on loopback: as much as its client asks for files.

The hub itself cannot be had in tests. Paths and answers were taken from what huggingface_hub 2.4
and datasets 5.2 send and read.
"""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SHA = "a" * 40


class _Hub(ThreadingHTTPServer):
    daemon_threads = True
    repositories: Mapping[str, Mapping[str, bytes]]


class _Handler(BaseHTTPRequestHandler):
    """Repositories are named ``datasets/OWNER/NAME`` or ``models/OWNER/NAME``."""

    protocol_version = "HTTP/1.1"
    server: _Hub

    def do_GET(self) -> None:
        kind, *path = unquote(urlsplit(self.path).path).strip("/").split("/")
        if kind == "api" and len(path) >= 3:
            self._describe("/".join(path[:3]), path[3:])
        elif kind == "datasets" and "resolve" in path:
            self._file(f"datasets/{path[0]}/{path[1]}", "/".join(path[4:]))
        elif "resolve" in path:
            self._file(f"models/{kind}/{path[0]}", "/".join(path[3:]))
        else:
            self._answer(404)

    do_HEAD = do_GET  # noqa: N815 - the base's name

    def _describe(self, name: str, what: list[str]) -> None:
        files = self.server.repositories.get(name)
        if files is None:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif what[:1] == ["tree"]:
            self._answer(200, json.dumps(_tree(files, "/".join(what[2:]))).encode())
        else:
            listed = [{"rfilename": one} for one in files]
            body = {"id": name.partition("/")[2], "sha": _SHA, "siblings": listed, "tags": []}
            self._answer(200, json.dumps(body).encode())

    def _file(self, name: str, path: str) -> None:
        data = self.server.repositories.get(name, {}).get(path)
        headers = {"ETag": f'"{_oid(data or b"")}"', "X-Repo-Commit": _SHA}
        if data is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            self._answer(200, data, headers)

    def _answer(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for pair in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(*pair)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


def _oid(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _tree(files: Mapping[str, bytes], folder: str) -> list[dict[str, object]]:
    prefix = f"{folder}/" if folder else ""
    found: dict[str, dict[str, object]] = {}
    for name, data in files.items():
        if not name.startswith(prefix):
            continue
        first, below, _ = name.removeprefix(prefix).partition("/")
        kind = "directory" if below else "file"
        size, oid = (0, "b" * 40) if below else (len(data), _oid(data))
        path = prefix + first
        found[path] = {"type": kind, "path": path, "oid": oid, "size": size}
    return list(found.values())


@contextmanager
def fake_hub(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[str]:
    """Serve files of repositories; gives the URL for HF_ENDPOINT."""
    server = _Hub(("127.0.0.1", 0), _Handler)
    server.repositories = repositories
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
