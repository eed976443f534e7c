"""Summaries of samples: what the solvers see of the data."""
