"""The producer: reads a data set, stores its rows, queues their ids, and tells how a run stands."""
