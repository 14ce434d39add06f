"""Lists, opens and parses files; the receipts are small."""
