"""`python -m ruststream_kinesis.cli`: the command, where its script is not on the path."""

from ruststream_kinesis.cli import main

if __name__ == "__main__":
    main()
