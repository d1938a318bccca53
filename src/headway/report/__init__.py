"""Reports: a run's figures as tables and pictures, in one HTML file that needs no network."""
