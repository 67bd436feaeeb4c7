"""State machines that hunt what single examples miss."""
