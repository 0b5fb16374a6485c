"""A stranger's process, under its former name."""

from testbed.attacks.stranger import main

if __name__ == "__main__":
    main()
