"""So that `python -m sync_assets.cli` is the same as `sync-assets`."""

import sys

from sync_assets.cli.main import main

sys.exit(main())
