"""`python -m sees_torch` is the `sees` command."""

import sys

from sees_torch.cli import main

sys.exit(main())
