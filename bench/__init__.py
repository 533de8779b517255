"""Figures of speed and memory, each measured beside what people would do without hpcrun."""
