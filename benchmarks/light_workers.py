"""Many workers in one process, under their former name."""

from testbed.light_workers import main

if __name__ == "__main__":
    main()
