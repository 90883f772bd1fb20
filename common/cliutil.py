"""What every command shares: one way to end, one way to print."""
