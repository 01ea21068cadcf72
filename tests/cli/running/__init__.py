"""Tests of `treedbd.cli.running`."""
