"""The drivers of borrowed compute: a client in a program, a broker beside a manager, an executor beside an agent."""
