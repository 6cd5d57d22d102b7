"""Verify a state: survey it again and compare with the plan. The result is a Verdict."""
