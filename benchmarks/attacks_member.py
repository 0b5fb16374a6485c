"""A hostile member's process, under its former name."""

from testbed.attacks.member import main

if __name__ == "__main__":
    main()
