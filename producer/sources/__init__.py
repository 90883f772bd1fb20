"""Data sets: where they are, how they are packed, and what their rows mean.

url.py       places: files, globs, standard input, objects, the hub
streams.py   bytes in pieces, unpacked
lines.py     records in bytes
folder.py    which files of a folder are its data set
jsonl.py     JSON rows;  parquet.py, arrow.py  columns;  table.py  CSV;  hub.py  the hub's rows
chat.py      row shapes;  messages.py  what a message may be
"""
