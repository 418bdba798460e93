"""Readers of file formats. Nothing in a file is executed, and memory is bounded by the size of the file."""
