"""The controller: fences segments whose leader is lost, and seals them."""
