"""The S3 store: the SDK's calls with our retries, and the conditional PUT that it lacks."""

from __future__ import annotations

import hashlib
import io
import secrets
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import urlsplit

import stamina
from minio import Minio
from minio.signer import sign_v4_s3

from common.errors import StoreAwayError, StoreError
from common.objectstore import Created, ObjectMissingError, ObjectStat
from common.s3.refusals import FAILURES, error_in, refusal, worth_a_retry
from common.s3.wire import open_pool, read_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from minio.credentials.providers import Provider

T = TypeVar("T")
_NOTHING: Mapping[str, str] = MappingProxyType({})
_MIN_MULTIPART = 5 << 20
RETRY_ATTEMPTS = 5
RETRY_SECONDS = 30.0
_OUTCOMES = {200: Created.CREATED, 412: Created.EXISTS, 409: Created.CONFLICT}
_PASSING = frozenset({408, 429})  # of 400 to 499: those that say nothing about the request
_NOT_IMPLEMENTED = 501


class S3Store:
    """An S3-compatible service."""

    def __init__(
        self,
        *,
        bucket: str,
        prefix: str,
        endpoint: str,
        secure: bool,
        region: str,
        credentials: Provider,
    ) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self.endpoint = f"{'https' if secure else 'http'}://{endpoint}"
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._region = region
        self._credentials = credentials
        self._http = open_pool()
        # Who waits for a service says so, once; a line for each try would drown it.
        stamina.instrumentation.set_on_retry_hooks(())
        self._minio = Minio(
            endpoint,
            secure=secure,
            region=region,
            credentials=credentials,
            http_client=self._http,
        )

    def put(
        self,
        key: str,
        data: bytes,
        *,
        content_type: str = "application/octet-stream",
        metadata: Mapping[str, str] = _NOTHING,
    ) -> None:
        """See :class:`ObjectStore`."""
        self._call(
            "write",
            key,
            lambda: self._minio.put_object(
                self._bucket,
                self._prefix + key,
                io.BytesIO(data),
                len(data),
                content_type=content_type,
                metadata=dict(metadata),
                part_size=max(len(data), _MIN_MULTIPART),  # never multipart
            ),
        )

    def create(
        self,
        key: str,
        data: bytes,
        *,
        content_type: str = "application/octet-stream",
        metadata: Mapping[str, str] = _NOTHING,
    ) -> Created:
        """See :class:`ObjectStore`.

        The SDK has no parameter for the condition, and a presigned URL signs neither it nor the
        metadata (which stores then refuse), so the request is signed with the SDK's own signer.

        Raises:
            StoreError: nothing was written, since the store refuses the request itself.
        """
        try:
            url, headers = self._signed_put(key, data, content_type, metadata)
        except FAILURES as error:  # no keys, or whoever hands them out does not answer
            raise self._refusal("write", key, error) from error
        try:
            answer = self._http.request("PUT", url, body=data, headers=headers)
        except FAILURES:
            return Created.UNKNOWN
        outcome = _OUTCOMES.get(answer.status, Created.UNKNOWN)
        if outcome is Created.CREATED and not answer.headers.get("etag"):
            return Created.UNKNOWN  # not a store's answer, but the page of something before it
        if outcome is Created.UNKNOWN and _is_refusal(answer.status):
            raise self._refusal("write", key, error_in(answer))
        return outcome

    def _signed_put(
        self, key: str, data: bytes, content_type: str, metadata: Mapping[str, str]
    ) -> tuple[str, Mapping[str, str]]:
        url = urlsplit(self._minio.get_presigned_url("PUT", self._bucket, self._prefix + key))
        url = url._replace(query="")
        digest = hashlib.sha256(data).hexdigest()
        now = datetime.now(UTC)
        headers: dict[str, str | list[str] | tuple[str]] = {
            "Content-Type": content_type,
            "Host": url.netloc,
            "If-None-Match": "*",
            "x-amz-content-sha256": digest,
            "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
            **{f"x-amz-meta-{name}": value for name, value in metadata.items()},
        }
        credentials = self._credentials.retrieve()
        if credentials.session_token:
            headers["X-Amz-Security-Token"] = credentials.session_token
        signed = sign_v4_s3(
            method="PUT",
            url=url,
            region=self._region,
            headers=headers,
            credentials=credentials,
            content_sha256=digest,
            date=now,
        )
        return url.geturl(), cast("dict[str, str]", signed)

    def get(self, key: str) -> bytes:
        """See :class:`ObjectStore`."""
        return self._call("read", key, lambda: self._read(key))

    def read_range(self, key: str, offset: int, size: int, *, etag: str) -> bytes:
        """See :class:`ObjectStore`."""
        return self._call("read", key, lambda: self._read(key, offset, size, etag))

    def _read(self, key: str, offset: int = 0, size: int = 0, etag: str = "") -> bytes:
        answer = self._minio.get_object(
            self._bucket,
            self._prefix + key,
            offset=offset,
            length=size,
            request_headers={"If-Match": f'"{etag}"'} if etag else None,
        )
        try:
            return read_body(answer)
        finally:
            answer.close()
            answer.release_conn()

    def stat(self, key: str) -> ObjectStat | None:
        """See :class:`ObjectStore`."""
        try:
            found = self._call(
                "look up", key, lambda: self._minio.stat_object(self._bucket, self._prefix + key)
            )
        except ObjectMissingError:
            return None
        metadata = {
            name.lower().removeprefix("x-amz-meta-"): str(value)
            for name, value in (found.metadata or {}).items()
            if name.lower().startswith("x-amz-meta-")
        }
        return ObjectStat(key, found.size or 0, (found.etag or "").strip('"'), metadata)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectStat]:
        """See :class:`ObjectStore`; each page is retried, and the listing goes on behind it."""
        last = start_after
        while True:
            page = self._call("list", prefix, partial(self._page, prefix, last))
            yield from page
            if not page:
                return
            last = page[-1].key

    def _page(self, prefix: str, start_after: str) -> Sequence[ObjectStat]:
        objects = self._minio.list_objects(
            self._bucket,
            self._prefix + prefix,
            recursive=True,
            start_after=self._prefix + start_after if start_after else None,
        )
        page: deque[ObjectStat] = deque()
        for found in objects:
            key = str(found.object_name).removeprefix(self._prefix)
            page.append(ObjectStat(key, found.size or 0, (found.etag or "").strip('"')))
            if len(page) == 1000:
                break
        return page

    def folders(self) -> Iterator[str]:
        """See :class:`ObjectStore`."""
        yield from self._call("list", "", self._folders)

    def _folders(self) -> Sequence[str]:
        found = self._minio.list_objects(self._bucket, self._prefix or None)
        names = (str(one.object_name).removeprefix(self._prefix) for one in found if one.is_dir)
        return [name.rstrip("/") for name in names]

    def delete(self, key: str) -> None:
        """See :class:`ObjectStore`."""
        with suppress(ObjectMissingError):
            self._call(
                "delete", key, lambda: self._minio.remove_object(self._bucket, self._prefix + key)
            )

    def probe(self) -> None:
        """See :class:`ObjectStore`.

        Raises:
            StoreAwayError: it does not answer.
            StoreError: a right is missing, or a conditional write overwrote an object.
        """
        key = f".genq-probe/{secrets.token_hex(8)}"
        self.put(f"{key}-a", b"a")
        try:
            self._create_surely(f"{key}-b", b"b")
            second = self._create_surely(f"{key}-b", b"c")
            if second is Created.CREATED or self.get(f"{key}-b") != b"b":
                raise StoreError(
                    f"{self.url} ignores If-None-Match, so two sinks could overwrite each other.",
                    why=f"{self.endpoint} accepted a second conditional PUT of the same key.",
                    fix="Use a store that honours it, or a single sink: gen-sink --single-writer",
                )
            self._check_reading(key)
        finally:
            for name in ("a", "b"):
                with suppress(StoreError):  # the first error counts; a leftover does no harm
                    self.delete(f"{key}-{name}")
        self.delete(f"{key}-a")  # again, since the right to delete was not proven yet

    def _create_surely(self, key: str, data: bytes) -> Created:
        """Return CREATED or EXISTS: conditional PUTs until one of them is answered so."""
        retry = stamina.retry_context(
            on=StoreAwayError, attempts=RETRY_ATTEMPTS, timeout=RETRY_SECONDS
        )
        for attempt in retry:
            with attempt:
                outcome = self.create(key, data, metadata={"genq-writer": "probe"})
                if outcome in (Created.CREATED, Created.EXISTS):
                    return outcome
                raise StoreAwayError(
                    f"Cannot write {self.url}/{key}.",
                    why=f"{self.endpoint}: a conditional PUT was not answered, or with an error.",
                    fix=f"Check that {self.endpoint} answers.",
                )
        raise AssertionError("stamina ends with an answer or an error")

    def _check_reading(self, key: str) -> None:
        found = self.stat(f"{key}-b")
        if found is None or found.metadata.get("genq-writer") != "probe":
            raise StoreError(
                f"{self.url} does not keep the metadata of objects.",
                why="A lost answer to a commit could not be told from somebody else's commit.",
                fix="Use a store that keeps x-amz-meta-* headers.",
            )
        if sum(1 for _ in self.list(key)) != 2:
            raise StoreError(
                f"{self.url} does not list what was just written.",
                why="Commits rest on read-after-write listing.",
                fix="Use a store with strong consistency.",
            )

    def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
        """Run one SDK call with retries, and turn its errors into ours."""
        retry = stamina.retry_context(
            on=worth_a_retry, attempts=RETRY_ATTEMPTS, timeout=RETRY_SECONDS
        )
        try:
            for attempt in retry:
                with attempt:
                    return call()
        except FAILURES as error:
            raise self._refusal(verb, key, error) from error
        raise AssertionError("stamina ends with an answer or an error")

    def _refusal(self, verb: str, key: str, error: BaseException) -> StoreError:
        where = {"url": self.url, "endpoint": self.endpoint, "region": self._region}
        return refusal(error, verb=verb, key=key, **where)


def _is_refusal(status: int) -> bool:
    client = 400 <= status < 500 and status not in _PASSING
    return client or status == _NOT_IMPLEMENTED
