"""Papers reproduced: each folder runs one paper's experiments on Shoal and sets its figures beside the paper's."""
