"""A statement and facts about the table become a plan."""
