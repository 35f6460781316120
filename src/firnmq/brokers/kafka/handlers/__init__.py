"""What each request does, by area."""
