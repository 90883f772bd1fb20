"""Object storage behind one small protocol; the only module that knows the minio SDK."""
