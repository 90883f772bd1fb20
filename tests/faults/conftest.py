"""What the fault tests of the store share."""

from __future__ import annotations

import pytest

from tests.support.forge import running_forge
from tests.support.s3_proxy import s3_proxy


@pytest.fixture(scope="session")
def sink_forge():
    """A start of gen-sink costs no import: one forge for all tests of a process."""
    with running_forge() as made:
        yield made


@pytest.fixture
def store_proxy(s3_server):
    """The session's S3 server behind a proxy that fails as it is told."""
    with s3_proxy(s3_server) as made:
        yield made
