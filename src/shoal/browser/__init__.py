"""A tab of a browser as a device that trains: its door beside the manager, and the page that it opens."""
