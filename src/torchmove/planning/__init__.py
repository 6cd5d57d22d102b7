"""Decide what moves, what stays and why, and what prevents the move, without using a device."""
