"""A machine that answers DNS to the world: its servers, what they are asked, and how they answer."""
