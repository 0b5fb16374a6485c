"""A training step as a file: captured where PyTorch is, trained where it is not."""
