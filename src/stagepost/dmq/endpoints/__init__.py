"""The three CIP-0137 mini-protocols as objects for programs and nodes."""
