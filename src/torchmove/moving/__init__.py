"""Carry out a plan: copy everything, then commit, or undo. The movers and the Receipt are here too."""
