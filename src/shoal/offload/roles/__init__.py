"""The roles of borrowed compute: a client, a broker for each pool, its executors. Pure; drivers act."""
