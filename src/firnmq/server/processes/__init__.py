"""Several processes on one machine: supervised, and as one data directory with one HTTP address."""
