"""The program that `torchmove demo` runs: a training script with two device bugs."""
