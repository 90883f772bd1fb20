"""The parts of bench_scale: the crowd of consumers, the sinks, what is measured, the record."""
