"""Private names of torch and CPython, and the code directly on top of them. No other folder uses private names."""
