"""What a report states, derived from a stored session: sums, attacks, protection, users, rules, tables."""
