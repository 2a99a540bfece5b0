"""Answers customers: the HTTP application, the dialogue flow, engines, adapter slots, outbox, auth, metrics.

Imports ``negotiation`` and nothing else of ours. What it needs from above (the event log, the registry of
adapters) it names as a Protocol, and ``sparring`` hands in the implementation. This module imports nothing, so
that ``serving.client`` and ``serving.config`` stay free of torch and FastAPI.
"""
