"""`doctor` of each service: what it needs, tried harmlessly, each finding with its remedy."""
