"""Tests of hpcrun ui."""
