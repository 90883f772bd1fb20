"""What every service shares: names, records, the queue, object storage. Imports no service."""
