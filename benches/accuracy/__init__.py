"""How well attacks are named: fitting, weighing, scores on the corpus."""
