"""How the services are run: the local stack, and the files for real installations."""

from pathlib import Path

STATE_FOLDER = Path(".genq")  # where local stacks live, from the working folder
