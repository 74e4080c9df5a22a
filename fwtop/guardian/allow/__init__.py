"""Who is never cut off, and in which role."""
