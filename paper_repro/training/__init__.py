"""Training: one cell through Lightning, or many small models of one shape at once."""
