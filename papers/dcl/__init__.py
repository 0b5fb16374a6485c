"""DCL (thesis, 2022) reproduced on Shoal: offloaded layers, what they cost, and what shuffling hides. See README.md."""
