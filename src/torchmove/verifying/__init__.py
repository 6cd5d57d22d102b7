"""Compare a state with what a plan made of it, by a fresh survey; the result is a Verdict."""
