"""S3-compatible object storage; the one place where a store is made from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from common.errors import UsageError
from common.settings import names_of, origin_of, origin_text, set_by

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from common.objectstore import ObjectStore
    from common.settings import Settings


def open_store(settings: Settings) -> ObjectStore:
    """Return the store that the settings name; nothing is sent yet.

    Raises:
        UsageError: the store or the endpoint is not given or cannot be read.
    """
    place = urlsplit(settings.store)
    endpoint = urlsplit(settings.s3_endpoint)
    for name, given in (("store", place), ("s3_endpoint", endpoint)):
        if "@" in given.netloc:
            raise UsageError(
                f"{name} must not hold a user or a key.",
                why=f"It comes from {origin_of(name, {})}, and is shown in messages and logs.",
                fix=f"Give them as {names_of('s3_access_key')[-1]} and"
                f" {names_of('s3_secret_key')[-1]}.",
            )
    if place.scheme != "s3" or not place.netloc:
        raise UsageError(
            f"{settings.store!r} is not a place in object storage."
            if settings.store
            else "No object storage is named.",
            why=origin_text("store"),
            fix=_store_for(place),
        )
    if endpoint.scheme not in ("http", "https") or not endpoint.netloc:
        raise UsageError(
            f"{settings.s3_endpoint!r} is not the URL of an S3 service.",
            why=f"It comes from {origin_of('s3_endpoint', {})}.",
            fix=f"For example: export {names_of('s3_endpoint')[0]}=http://127.0.0.1:9000",
        )
    from minio.helpers import check_bucket_name  # noqa: PLC0415 - the SDK takes 0.5 s to import

    try:
        check_bucket_name(place.netloc)
    except ValueError as error:
        raise UsageError(
            f"{place.netloc!r} cannot be the name of a bucket.",
            why=f"{origin_text('store')} It takes 3 to 63 letters, digits, dots and hyphens.",
            fix=f"Correct it: {set_by('store') or names_of('store')[0]}",
        ) from error
    from common.s3.credentials import credentials_of  # noqa: PLC0415 - the same
    from common.s3.store import S3Store  # noqa: PLC0415 - the same

    return S3Store(
        bucket=place.netloc,
        prefix=place.path.strip("/"),
        endpoint=endpoint.netloc,
        secure=endpoint.scheme == "https",
        region=settings.s3_region,
        credentials=credentials_of(settings),
    )


def _store_for(given: SplitResult) -> str:
    """Return how to name the store that was meant; an S3 service's own URL holds both parts."""
    if given.scheme not in ("http", "https") or not given.netloc:
        return "For example: export GENQ_STORE=s3://bucket/prefix"
    path = given.path.strip("/") or "bucket/prefix"
    service = f"{names_of('s3_endpoint')[0]}={given.scheme}://{given.netloc}"
    return f"Name the bucket and the service apart: export GENQ_STORE=s3://{path} {service}"
