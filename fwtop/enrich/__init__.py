"""Country and autonomous system of addresses; the only importer of maxminddb."""
