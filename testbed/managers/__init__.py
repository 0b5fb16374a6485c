"""Several managers on one database, which are hurt, cut off, or given an older database."""
