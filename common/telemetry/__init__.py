"""What services say of themselves: logs and metrics."""
