"""`python -m oal` is the `oal` command."""

import sys

from oal.cli import main

sys.argv[0] = "oal"  # what provenance is to say
main()
