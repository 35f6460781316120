"""What the store says of a whole cluster: manifests, recovery, scrubbing, checks, cost."""
