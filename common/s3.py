"""The S3 store; the only module that knows the minio SDK."""

from __future__ import annotations

import hashlib
import io
import secrets
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast
from urllib.parse import urlsplit

import stamina
import urllib3
from minio import Minio
from minio.credentials.providers import (
    AWSConfigProvider,
    ChainedProvider,
    EnvAWSProvider,
    IamAwsProvider,
    Provider,
    StaticProvider,
)
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from minio.signer import sign_v4_s3

from common.errors import StoreAwayError, StoreError
from common.objectstore import Created, ObjectMissingError, ObjectStat
from common.settings import names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from common.settings import Settings

T = TypeVar("T")
_NOTHING: Mapping[str, str] = MappingProxyType({})
_MIN_MULTIPART = 5 << 20
_GONE = frozenset({"NoSuchKey", "NoSuchObject", "ResourceNotFound"})
_FINAL = frozenset(  # a repeat of the same call cannot help
    {
        "AccessDenied",
        "AuthorizationHeaderMalformed",
        "InvalidAccessKeyId",
        "InvalidBucketName",
        "NoSuchBucket",
        "PreconditionFailed",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    }
    | _GONE
)
RETRY_ATTEMPTS = 5
RETRY_SECONDS = 30.0
CONNECT_SECONDS = 5.0
READ_SECONDS = 120.0


def credentials_of(settings: Settings) -> Provider:
    """Return the given keys, or else what the environment, ~/.aws or the machine offers."""
    if settings.s3_access_key and settings.s3_secret_key:
        token = settings.s3_session_token
        return StaticProvider(
            settings.s3_access_key.get_secret_value(),
            settings.s3_secret_key.get_secret_value(),
            token.get_secret_value() if token else None,
        )
    return ChainedProvider([EnvAWSProvider(), AWSConfigProvider(), IamAwsProvider()])


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
        self._http = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
            maxsize=16,
            retries=False,  # one layer of retries, and it is ours
        )
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
        """
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
        try:
            answer = self._http.request(
                "PUT", url.geturl(), body=data, headers=cast("dict[str, str]", signed)
            )
        except (urllib3.exceptions.HTTPError, OSError):
            return Created.UNKNOWN
        by_status = {200: Created.CREATED, 412: Created.EXISTS, 409: Created.CONFLICT}
        return by_status.get(answer.status, Created.UNKNOWN)

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
            data = bytes(answer.read())
        finally:
            answer.close()
            answer.release_conn()
        expected = answer.headers.get("content-length")
        if expected is not None and int(expected) != len(data):
            raise urllib3.exceptions.IncompleteRead(len(data), int(expected))
        return data

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

    def delete(self, key: str) -> None:
        """See :class:`ObjectStore`."""
        with suppress(ObjectMissingError):
            self._call(
                "delete", key, lambda: self._minio.remove_object(self._bucket, self._prefix + key)
            )

    def probe(self) -> None:
        """See :class:`ObjectStore`.

        Raises:
            StoreError: a right is missing, or a conditional write overwrote an object.
        """
        key = f".genq-probe/{secrets.token_hex(8)}"
        self.put(f"{key}-a", b"a")
        try:
            first = self.create(f"{key}-b", b"b", metadata={"genq-writer": "probe"})
            if first is not Created.CREATED:
                self._refuse("write", key, None)
            second = self.create(f"{key}-b", b"c")
            if second is Created.CREATED or self.get(f"{key}-b") != b"b":
                raise StoreError(
                    f"{self.url} ignores If-None-Match, so two sinks could overwrite each other.",
                    why=f"{self.endpoint} accepted a second conditional PUT of the same key.",
                    fix="Use a store that honours it, or a single sink: gen-sink --single-writer",
                )
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
        finally:
            self.delete(f"{key}-a")
            self.delete(f"{key}-b")

    def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
        """Run one SDK call with retries, and turn its errors into ours."""
        retry = stamina.retry_context(
            on=_worth_a_retry, attempts=RETRY_ATTEMPTS, timeout=RETRY_SECONDS
        )
        try:
            for attempt in retry:
                with attempt:
                    return call()
        except (MinioException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            self._refuse(verb, key, error)
        raise AssertionError("stamina ends with an answer or an error")

    def _refuse(self, verb: str, key: str, error: BaseException | None) -> NoReturn:
        code = (error.code or "") if isinstance(error, S3Error) else ""
        where = f"{self.url}/{key}"
        if code in _GONE:
            raise ObjectMissingError(f"{where} is not there.", why=str(error)) from error
        remedies = {
            "NoSuchBucket": f"Create it: mc mb, aws s3 mb s3://{self._bucket}",
            "AccessDenied": "Give the key the rights to get, put, list and delete there.",
            "InvalidAccessKeyId": f"Check {names_of('s3_access_key')[-1]}.",
            "SignatureDoesNotMatch": f"Check {names_of('s3_secret_key')[-1]}.",
            "RequestTimeTooSkewed": "Set this machine's clock.",
        }
        default = f"Check that {self.endpoint} answers, and {names_of('s3_endpoint')[0]}."
        kind = StoreAwayError if _away(error) else StoreError
        raise kind(
            f"Cannot {verb} {where}.",
            why=f"{self.endpoint}: {error or 'a conditional PUT was not answered with 200'}",
            fix=remedies.get(code, default),
        ) from error


def _worth_a_retry(error: Exception) -> bool:
    if isinstance(error, S3Error):
        return error.code not in _FINAL
    return isinstance(
        error, (InvalidResponseError, ServerError, urllib3.exceptions.HTTPError, OSError)
    )


def _away(error: BaseException | None) -> bool:
    """Return whether nothing answered, or a server that is only starting."""
    if isinstance(error, urllib3.exceptions.SSLError):
        return False
    return isinstance(error, (ServerError, urllib3.exceptions.HTTPError, OSError))
