"""How much clients may do per second: what is set for whom, and how those beyond it are slowed."""
