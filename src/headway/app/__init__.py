"""Use cases: what the command line, the REST interface and the web page all call."""
