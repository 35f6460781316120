"""A shop's clickstream: a year of it and the last second, from topics to topics and to the lake."""
