"""What ``gen-sink doctor`` asks for: every right, and a store that can commit."""

from __future__ import annotations

from common.doctor.command import Patient

SINK = Patient("sink")
