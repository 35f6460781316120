"""Which nodes there are, which shards they lead, and where new shards and coordinators go."""
