"""Claim scheduled work from your own Postgres table with one UPDATE … RETURNING, under Dagster."""
