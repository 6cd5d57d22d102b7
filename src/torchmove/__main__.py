"""Entry point of `torchmove` and `python -m torchmove`."""

import sys


def run() -> None:
    try:
        from torchmove.cli import main  # imported here, so that Ctrl-C during the import ends quietly too

        main(prog_name="torchmove")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
