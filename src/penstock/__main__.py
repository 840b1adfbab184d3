"""The `penstock` command. `serve` goes straight to the server, everything else through the command line's rooms."""

import sys

HELP_FLAGS = ("--help", "-h")


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"] and not any(flag in arguments for flag in HELP_FLAGS):
        from penstock.cli.serve import serve

        sys.exit(serve(arguments[1:]))
    from penstock.cli.main import run

    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
