"""The pure rooms: no event loop, clock, socket, lock or logger in here."""
