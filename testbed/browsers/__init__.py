"""A browser without a screen, and a checker of accessibility in its pages."""
