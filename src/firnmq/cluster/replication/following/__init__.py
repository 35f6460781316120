"""A segment on one node: fetching, fences, tail copies, truncation to the sealed end."""
