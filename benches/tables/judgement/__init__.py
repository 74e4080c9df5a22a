"""Tables on what is observed and concluded."""
