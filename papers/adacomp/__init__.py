"""AdaComp's experiments on Shoal's codecs and rules of staleness."""
