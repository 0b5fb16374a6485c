"""Hostile frames to a manager and a leader; ``testbed.attacks.hostile_frames`` describes them."""

from testbed.attacks.hostile_frames import main

if __name__ == "__main__":
    main()
