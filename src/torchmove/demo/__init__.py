"""What `torchmove demo` shows: a training program with two faults, and the commands that find and mend them."""
