"""`python -m torchmove` is the command line."""

from torchmove.cli import main

main(prog_name="torchmove")
