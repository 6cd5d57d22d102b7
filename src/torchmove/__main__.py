"""`torchmove` and `python -m torchmove`: the command line."""

import sys


def run() -> None:
    try:
        from torchmove.cli import main  # takes a moment: Ctrl-C may come already

        main(prog_name="torchmove")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
