"""The gradient of the gradient, in a folder of its own for its length."""
