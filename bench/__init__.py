"""Benchmarks of speed and memory, each compared with an alternative without hpcrun."""
