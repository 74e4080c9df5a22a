"""Single packets: a filter language, what became of each packet, who sent it, and rules made of one."""
