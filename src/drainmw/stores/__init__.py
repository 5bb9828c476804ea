"""Where it is noted who may run schedules, and who lives."""
