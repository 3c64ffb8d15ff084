"""What a machine needs to run this with nothing installed: a Postgres of its own, and an upstream to talk to."""
