"""What drainmw costs, measured beside what it is compared with."""
