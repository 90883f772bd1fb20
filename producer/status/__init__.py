"""`gen-producer status`: how runs stand, at a glance."""
