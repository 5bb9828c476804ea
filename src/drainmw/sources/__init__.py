"""What feeds the `jobs` and `schedules` counters and can be held."""
