"""What an S3 service's refusal means for a person, and whether the same call may yet succeed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree.ElementTree import ParseError

import urllib3
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError

from common.errors import StoreAwayError, StoreError
from common.objectstore import ObjectMissingError
from common.s3.credentials import NoCredentialsError
from common.settings import names_of, origin_of, set_by

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

# All that the SDK, the connection and the signer raise.
FAILURES = (MinioException, urllib3.exceptions.HTTPError, OSError, ValueError, ParseError)
_GONE = frozenset({"NoSuchKey", "NoSuchObject", "ResourceNotFound"})
_REGION = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
        "TemporaryRedirect",
    }
)
_TOKEN = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_FINAL = (  # a repeat of the same call cannot help
    frozenset(
        {
            "AccessDenied",
            "InvalidAccessKeyId",
            "InvalidBucketName",
            "NoSuchBucket",
            "NotImplemented",
            "PreconditionFailed",
            "RequestTimeTooSkewed",
            "SignatureDoesNotMatch",
        }
    )
    | _GONE
    | _REGION
    | _TOKEN
)

_TOO_MANY, _FAILED = 429, 500  # statuses of S3 errors: too many calls; from here on, its own fault


def worth_a_retry(error: Exception) -> bool:
    """Tell whether the same call may succeed in a moment."""
    if isinstance(error, S3Error):
        return error.code not in _FINAL
    if isinstance(error, urllib3.exceptions.SSLError):
        return False
    passing = (
        InvalidResponseError,
        ServerError,
        urllib3.exceptions.HTTPError,
        OSError,
        ParseError,  # a proxy's page where XML was due
    )
    return isinstance(error, passing)


def error_in(answer: BaseHTTPResponse) -> Exception:
    """Return the error that an answer holds, as the SDK would have raised it."""
    try:
        return S3Error.fromxml(answer)
    except (ParseError, UnicodeDecodeError):
        return ServerError(f"server failed with HTTP status code {answer.status}", answer.status)


def refusal(
    error: BaseException, *, verb: str, key: str, url: str, endpoint: str, region: str
) -> StoreError:
    """Return the error of ours that says what failed, why, and the way out."""
    where = f"{url}/{key}"
    code = (error.code or "") if isinstance(error, S3Error) else ""
    if code in _GONE:
        return ObjectMissingError(f"{where} is not there.", why=_reason(error))
    kind = StoreAwayError if _away(error) else StoreError
    return kind(
        f"Cannot {verb} {where}.",
        why=f"{endpoint}: {_reason(error)}",
        fix=_way_out(error, code, bucket=url.split("/")[2], endpoint=endpoint, region=region),
    )


def _away(error: BaseException) -> bool:
    """Return whether nothing answered, or a server that is only starting, or too busy."""
    if isinstance(error, urllib3.exceptions.SSLError):
        return False
    if isinstance(error, S3Error):
        status = getattr(error.response, "status", 0)
        return worth_a_retry(error) and (status >= _FAILED or status == _TOO_MANY)
    return isinstance(error, (ServerError, urllib3.exceptions.HTTPError, OSError))


def _reason(error: BaseException) -> str:
    if isinstance(error, S3Error):
        return f"{error.code}: {error.message}"
    # urllib3 begins with the connection's own representation, which names our classes.
    return re.sub(r"^\w+\(host=[^)]*\): ", "", str(error)) or type(error).__name__


def _way_out(error: BaseException, code: str, *, bucket: str, endpoint: str, region: str) -> str:
    if isinstance(error, NoCredentialsError):
        names = (names_of("s3_access_key")[-1], names_of("s3_secret_key")[-1])
        return "Name them: export " + " ".join(f"{name}=..." for name in names)
    if isinstance(error, urllib3.exceptions.SSLError):
        return f"Check the certificate, or say http:// in {_place('s3_endpoint')}."
    if code in _REGION:
        place = set_by("s3_region")
        name = place if place in names_of("s3_region") else names_of("s3_region")[1]
        return f"Name the bucket's region: export {name}=..."
    if code in _TOKEN:
        return f"Renew the session, and its {_key('s3_session_token')}."
    remedies = {
        "NoSuchBucket": f"Correct {_place('store')}, or create it: aws s3 mb s3://{bucket}"
        f" --region {region} --endpoint-url {endpoint}",
        "AccessDenied": f"Check {_key('s3_access_key')}; it needs the rights to get, put, list and"
        " delete there.",
        "InvalidAccessKeyId": f"Check {_key('s3_access_key')}.",
        "SignatureDoesNotMatch": f"Check {_key('s3_secret_key')}.",
        "NotImplemented": "Use a store that honours If-None-Match, or: gen-sink --single-writer",
        "RequestTimeTooSkewed": "Set this machine's clock.",
    }
    origin = origin_of("s3_endpoint", {})
    return remedies.get(code, f"Check that {endpoint} answers (it comes from {origin}).")


def _place(field: str) -> str:
    """Return what to change for another value: where it comes from now."""
    return set_by(field) or names_of(field)[0]


def _key(field: str) -> str:
    """Return what to change for another key: one of the settings' counts only with the other."""
    own = set_by("s3_access_key") and set_by("s3_secret_key")
    name = names_of(field)[-1]
    return (own and set_by(field)) or f"{name} (none is set: ~/.aws/credentials or the machine's)"
