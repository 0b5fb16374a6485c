"""Layers of a torch model whose products are done elsewhere: in the user's own loop, with autograd as it is."""
