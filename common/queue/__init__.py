"""The queue: leases of our own, in RQ's formats on the outside.

prompts.py    items waiting, leased, retried: what producers and consumers do
results.py    results on their way: what the sink does
run_state.py  runs as a whole: create, list, pause, close, count
run_facts.py  what Redis says of a run, as records
canary.py     whether the first rows go well
same_run.py   whether a run is the one that a command means
scan.py       which items are anywhere, for repair
workers.py    workers as RQ registers them
failures.py   reasons of failures in RQ's format
scripts.py    the Lua scripts of lua/, loaded and called
job.py        what a stock RQ worker runs
"""


def run() -> None:
    """Give back the job that a stock RQ worker is running: what RQ finds in all jobs of ours.

    Its name is in every job's hash, so it is short. Raises as :func:`common.queue.job.run` does.
    """
    from common.queue import job  # noqa: PLC0415 - rq takes 0.2 s to import

    job.run()
