"""``python -m kt_core.cli`` is ``kt``."""

import sys

from kt_core.cli.main import main

sys.exit(main())
