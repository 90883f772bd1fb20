"""Data sets: where they are, how they are packed, and what their rows mean.

url.py       places: files, globs, standard input, objects, the hub
streams.py   bytes in pieces, unpacked
lines.py     records in bytes
jsonl.py     JSON rows;  parquet.py  Parquet rows;  hub.py  rows of the Hugging Face hub
chat.py      row shapes;  messages.py  what a message may be
"""
