"""The parts of the wire inspector: lanes, states, rules and the report that they fill. No I/O."""
