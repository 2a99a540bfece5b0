"""The gym: joint rollouts, two isolated role learners, warm start, counterparts and evaluation."""
