"""`gen-producer report`: a run as one page, and the same numbers as JSON."""
