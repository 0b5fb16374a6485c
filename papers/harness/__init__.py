"""The parts that every paper shares: rows and their files, tables, plots, README marks, the command. Knows no paper."""
