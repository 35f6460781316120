"""What the `firn lake` commands share."""
