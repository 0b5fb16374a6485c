"""Layers of a torch model whose products are computed elsewhere, in the user's own loop; autograd works as before."""
