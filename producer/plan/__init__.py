"""`gen-producer plan`: what a load would find and cost."""
