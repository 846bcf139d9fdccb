"""Measure benchmarks: `python -m benchmarks NAME ...`."""

from benchmarks.harness import main

if __name__ == "__main__":
    main()
