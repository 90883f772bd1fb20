"""Steering a run: pause, resume, cancel, priorities, dead letters, child runs."""
