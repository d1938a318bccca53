"""The pure heart: tables, events, state, plans, rounds and the policy protocol; no I/O and no clock."""
