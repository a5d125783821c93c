"""Faster forwards of the same module: weights packed for the processor, projections joined, weights quantised."""
