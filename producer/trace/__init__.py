"""`gen-producer trace`: the life of one item, from Redis and object storage, read alone."""
