"""DCL (Brown, University of Arkansas 2022): divide-and-conquer learning, repeated, corrected and set beside ours."""
