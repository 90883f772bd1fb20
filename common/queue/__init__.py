"""The queue: leases of our own, in RQ's formats on the outside.

prompts.py    items waiting, leased, retried: what producers and consumers do
results.py    results on their way: what the sink does
run_state.py  runs as a whole: create, list, pause, close, count
scripts.py    the Lua scripts of lua/, loaded and called
"""
