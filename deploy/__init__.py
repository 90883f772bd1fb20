"""How the services are run: the local stack, and the files for real installations."""
