"""Every rule and set on the machine, whoever made it, as a list that is read again and again."""
