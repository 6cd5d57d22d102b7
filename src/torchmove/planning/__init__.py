"""Decide what would move, what stays and why, and what stands in the way, without touching a device."""
