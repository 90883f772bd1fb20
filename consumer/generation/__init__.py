"""From a row to a judged completion: render, request, verdict, and how many at a time."""
