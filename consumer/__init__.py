"""Consumers: engines kept full, completions made, checked and committed."""
