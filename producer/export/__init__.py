"""`gen-producer export`: a run's completions as files that other tools read."""
