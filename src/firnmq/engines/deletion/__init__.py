"""Deletions by key and by offset: what a log hides, its entries, and the rows derived from them."""
