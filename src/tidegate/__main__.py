"""`python -m tidegate`: how children are started, whatever PATH says."""

from tidegate.cli import main

if __name__ == "__main__":
    main()
