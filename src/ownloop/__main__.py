"""`python -m ownloop`."""

import sys

from ownloop.cli.main import main

sys.exit(main())
