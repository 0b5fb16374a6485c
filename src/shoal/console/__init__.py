"""The console: a page in a browser that shows a cluster live and in the past. A separate process, and an operator."""
