"""An engine's side of tiering: copies of segments in an object store."""
