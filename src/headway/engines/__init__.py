"""What carries out actions and reports events: the protocol, its capabilities, and one module per kind."""
