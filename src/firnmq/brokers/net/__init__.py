"""What every broker needs of a network: listener, limits, memory of requests, sending."""
