"""Optimisation on tensors: knows nothing of samples, subsets or shift."""
