"""Carry out a plan: copy everything, then commit or roll back. Contains the movers and the Receipt."""
