"""The whole loop on one machine, for a newcomer to watch: ``sparring demo`` or ``make demo``.

The driver here is a client of the real thing: it starts the same commands that an operator would, talks HTTP to
them and reads what they publish. It imports neither torch nor MLflow.
"""
