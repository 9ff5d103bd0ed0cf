"""The inline tier's library half: rows in the catalog's database, as Arrow tables and back."""
