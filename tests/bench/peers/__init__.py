"""The parts of bench_peers: the engines, how each tool is run, what is counted, the record."""
