"""The Duckling Queue: small writes, durable at once, on their way to the lake in large files."""
