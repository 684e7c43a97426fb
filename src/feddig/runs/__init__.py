"""Runs: build the parties of an experiment, train and record every round, compare runs."""
