"""`gen-producer load`: rows in, shards and run.json up, ids queued."""
