"""The name of the tensor in which devices answer a question."""

#: The tensor, or the module that has one tensor per figure.
ANSWERS = "shoal_answers"
