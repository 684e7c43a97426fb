"""`python -m feddig` is the command `feddig`."""

from feddig.cli import main

main()
