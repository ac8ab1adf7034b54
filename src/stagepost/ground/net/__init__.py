"""The outside world: sockets, clocks, files. Moves bytes; decides nothing about protocols."""
