"""What an S3 service says of itself to anybody who asks: its clock, and a bucket's region."""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import urllib3

from common.s3.wire import CONNECT_SECONDS

_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ServerWords:
    """``clock_offset_seconds``: how far its clock is before ours, to a second; None: not said."""

    clock_offset_seconds: float | None = None
    region: str = ""  # of the bucket; "" where it does not say


def server_words(endpoint: str, bucket: str) -> ServerWords:
    """Ask with one unsigned HEAD of the bucket: its headers tell, whatever the answer is.

    Never raises: a service that does not answer says nothing.
    """
    timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=_ANSWER_SECONDS)
    asked = time.time()
    try:
        with urllib3.PoolManager(timeout=timeout, retries=False) as pool:
            answer = pool.request("HEAD", f"{endpoint.rstrip('/')}/{bucket}", redirect=False)
        date = parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
    except (urllib3.exceptions.HTTPError, OSError):
        return ServerWords()
    except (ValueError, TypeError):  # no date, or none that can be read
        return ServerWords(region=answer.headers.get("x-amz-bucket-region", ""))
    # Its date is cut to the second: half of one is added.
    offset = date + 0.5 - (asked + time.time()) / 2
    return ServerWords(offset, answer.headers.get("x-amz-bucket-region", ""))
