"""What a negotiation is: roles, scenarios, moves, outcomes, events and authority limits.

Leaves out on purpose: any I/O, any model, any network. Everything here is a pure function or a frozen
value, so that serving, training and pipelines can all stand on the same rules.
"""
