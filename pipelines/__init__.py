"""Keeps it going: event log -> dataset -> one round (co-train, evaluate, gate, promote) -> registry.

Importing this package is cheap. MLflow, matplotlib and PyArrow are imported by the modules that need them.
"""
