"""The parts of the benchmark on a real GPU."""
