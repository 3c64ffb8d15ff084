"""Imported once, by the process that all runs are forked from, so that it ends with the soak and they with it.

Without it they would keep it alive, and it them: each holds the pipe by whose end it is told to end.
"""

from __future__ import annotations

from sync_assets_tests.soak.children import end_with_parent

end_with_parent()
