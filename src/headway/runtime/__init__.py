"""The live controller: journal, lease, recovery and the loop that runs rounds in wall-clock time."""
