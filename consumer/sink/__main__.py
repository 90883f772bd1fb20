"""``python -m consumer.sink``: gen-sink where it is not installed."""

from consumer.sink.cli import main

main()
