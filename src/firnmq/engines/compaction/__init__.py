"""Compaction: which segments, what stays of them, and the copy that replaces one."""
