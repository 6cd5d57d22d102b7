"""Private names of torch and CPython, and what is built directly on them; no other folder uses any."""
