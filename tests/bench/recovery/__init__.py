"""What bench_recovery measures, one fault a module."""
