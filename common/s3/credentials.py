"""Keys for an S3 service: those that the settings name, or those that the machine offers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import urllib3
from minio.credentials.providers import (
    AWSConfigProvider,
    EnvAWSProvider,
    IamAwsProvider,
    Provider,
    StaticProvider,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from minio.credentials.credentials import Credentials

    from common.settings import Settings

FRESH_SECONDS = 30.0
_METADATA_SECONDS = 2.0  # the machine's own metadata service is near, or not there


class NoCredentialsError(ValueError):
    """Neither the settings nor the machine offer keys."""


class Offered(Provider):
    """What the first of several places offers, asked again every half a minute.

    So keys that are renewed in a file, as those of temporary sessions are, come into force
    without a restart. (The SDK's own chain keeps for ever what carries no date.)
    """

    def __init__(self, places: Sequence[Provider], clock: Callable[[], float]) -> None:
        self._places = places
        self._clock = clock
        self._until = 0.0
        self._found: Credentials | None = None

    def retrieve(self) -> Credentials:
        """Return the keys. Raises NoCredentialsError."""
        found = self._found
        if found is None or self._clock() >= self._until or found.is_expired():
            self._found = found = self._ask()
            self._until = self._clock() + FRESH_SECONDS
        return found

    def _ask(self) -> Credentials:
        for place in self._places:
            try:
                return place.retrieve()
            except (ValueError, OSError, urllib3.exceptions.HTTPError):
                continue
        raise NoCredentialsError("no keys in the settings, in ~/.aws/credentials or of the machine")


def credentials_of(settings: Settings) -> Provider:
    """Return the given keys, or else what the environment, ~/.aws or the machine offers."""
    if settings.s3_access_key and settings.s3_secret_key:
        token = settings.s3_session_token
        return StaticProvider(
            settings.s3_access_key.get_secret_value(),
            settings.s3_secret_key.get_secret_value(),
            token.get_secret_value() if token else None,
        )
    machine = IamAwsProvider(
        http_client=urllib3.PoolManager(timeout=_METADATA_SECONDS, retries=False)
    )
    return Offered([EnvAWSProvider(), AWSConfigProvider(), machine], time.monotonic)
