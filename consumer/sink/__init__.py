"""The sink: results from the stream into parts on object storage, each item once.

batcher.py    when a batch is full (pure)
recover.py    the ledger: which items are committed, as seen in storage
commit.py     one batch into the next free part
finish.py     the last objects of a run, _SUCCESS at the very end; card.py words its README
intake.py     which results come next; decode.py makes completions of them
ending.py     when a run is finished, and opened again
run.py        one run from its first result to its end
tools.py      what all runs share, and how they call Redis and storage
service.py    all runs of this Redis
outage.py     what cannot be reached is tried again, and said once
identity.py   a name that a restarted sink has again
single.py     the lease and the store of single-writer mode
start.py      connections, checks, signals
cli.py        gen-sink
"""
