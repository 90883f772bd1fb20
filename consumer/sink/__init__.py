"""The sink: results from the stream into parts on object storage, each item once.

batcher.py    when a batch is full (pure)
recover.py    the ledger: which items are committed, as seen in storage
commit.py     one batch into the next free part
finish.py     the last objects of a run, _SUCCESS at the very end; card.py words its README
run.py        one run from its first result to its end
service.py    all runs of this Redis
outage.py     what cannot be reached is tried again, and said once
identity.py   a name that a restarted sink has again
single.py     the lease and the store of single-writer mode
start.py      connections, checks, signals
cli.py        gen-sink
"""
