"""What of an update is sent: the largest values, coarsely, the rest kept for later. Arrays alone; makes no bytes."""
