"""The default sync: one account's changed records, read, sent, acknowledged."""

from sync_assets.push.push import RecordPush

__all__ = ["RecordPush"]
