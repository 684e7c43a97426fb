"""Copies of a run's record for tools that people use already; the results folder stays the record."""
