"""The result format, and everything that writes files."""
