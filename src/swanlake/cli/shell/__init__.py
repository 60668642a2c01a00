"""The shell ``swanlake sql``: a prompt, scripts, and the commands of both."""
