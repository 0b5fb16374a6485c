"""The console: a page in a browser that shows a cluster live and as it was. A process of its own, and an operator."""
