"""Many seeds and deliberate bugs: play them on all cores, note what was played, and find the seeds that catch a bug."""
